"""A team of native threads, made and ended from Python."""

from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any

from phloem.kernels.cpu_backend.library import Library


class Team:
    """`threads` threads that run native functions together, the caller's among them.

    One caller at a time. Ends with `close`, as a context manager, or with the last reference to it.
    """

    def __init__(self, library: Library, threads: int) -> None:
        if threads < 1:
            raise ValueError(f"a team of {threads} threads is none: ask for at least 1")
        create = library.function("phloem_team_create", ctypes.c_int, restype=ctypes.c_void_p)
        destroy = library.function("phloem_team_destroy", ctypes.c_void_p)
        self.threads = threads
        self._handle: int = create(threads)
        if not self._handle:
            raise RuntimeError(f"the system has no {threads} threads to give: ask for fewer")
        self._end = weakref.finalize(self, _destroy, destroy, self._handle, os.getpid())
        # When Python ends a thread may still compute, and the process takes all with it anyway.
        self._end.atexit = False

    @property
    def handle(self) -> int:
        """What native functions take as `phloem::Team*`.

        Raises:
            RuntimeError: after `close`.
        """
        if not self._handle:
            raise RuntimeError("this team was closed and has no threads any more: make another")
        return self._handle

    def close(self) -> None:
        """End its threads. More than once does no harm."""
        self._handle = 0
        self._end()

    def __enter__(self) -> Team:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _destroy(destroy: Callable[..., Any], handle: int, creator: int) -> None:
    # A forked child has no such threads: waiting for their end would never end.
    if os.getpid() == creator:
        destroy(handle)
