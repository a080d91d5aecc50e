"""What a worker may use: `Limits`, and how a worker holds itself to them.

The service kills a worker that takes too long; here are the limits that the system enforces, as far
as it has them: memory where there is `/proc`, processor time where there is `resource`.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

_MIB = 1 << 20
_AUTOGROUP = Path("/proc/self/autogroup")


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of a compile service."""

    workers: int = 2
    """Processes that compile at once; each is started when first needed."""
    seconds: float = 10.0
    """How long a worker may take for one constraint; waiting for a worker is not counted."""
    memory_bytes: int = 1024 * _MIB
    """Address space that compiling one constraint may take beyond what the worker started with."""
    start_seconds: float = 120.0
    """How long a worker may take to start."""
    cache_bytes: int = 64 * _MIB
    """Compiled constraints kept in memory."""
    store_bytes: int = 256 * _MIB
    """Compiled constraints kept on disk."""
    error_seconds: float = 60.0
    """For how long a constraint that failed fails at once."""

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise ValueError(f"workers is {self.workers}: somebody must compile, give 1 or more")
        for name in ("seconds", "start_seconds"):
            value = getattr(self, name)
            if not 0 < value < math.inf:
                raise ValueError(f"{name} is {value:g}: give a time of more than 0 seconds")
        for name in ("memory_bytes", "cache_bytes", "store_bytes", "error_seconds"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name):g}: give 0 or more")


def lowest_priority() -> None:
    """Let this process run only where no other wants to, as far as the system has that.

    Linux may share processors between sessions first, each of which it calls an autogroup, and only
    then between the processes of one. So a process that leads a session lowers that too: otherwise
    it would take half of a processor from a server in another session, however nice it is.
    """
    if hasattr(os, "nice"):
        os.nice(19)
    with suppress(OSError):  # a sandbox may forbid either
        if hasattr(os, "SCHED_IDLE"):
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    with suppress(OSError):
        if _AUTOGROUP.exists() and os.getsid(0) == os.getpid():
            _AUTOGROUP.write_text("19", encoding="ascii")


def forbid_core_dumps() -> None:
    """Leave no image of the memory on disk when a limit ends this process."""
    if resource is not None:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


@contextmanager
def limited(seconds: float, memory_bytes: int) -> Iterator[None]:
    """Bound what this process may use inside the block.

    Memory beyond the limit cannot be had: Python raises `MemoryError`. Processor time beyond the
    limit, and a second more, ends the process; the service would have killed it before, but a
    worker that lost its service in the middle of native code must end too.
    """
    if resource is None:
        yield
        return
    space = address_space()
    bounds = {resource.RLIMIT_CPU: math.ceil(time.process_time() + seconds) + 1}
    if space is not None:
        bounds[resource.RLIMIT_AS] = space + memory_bytes
    before = {which: resource.getrlimit(which) for which in bounds}
    try:
        for which, bound in bounds.items():
            soft, hard = before[which]
            tightest = min([bound, *(x for x in (soft, hard) if x != resource.RLIM_INFINITY)])
            resource.setrlimit(which, (tightest, hard))
        yield
    finally:
        for which, limit in before.items():
            resource.setrlimit(which, limit)


def address_space() -> int | None:
    """Bytes of address space that this process takes; None where the system does not tell."""
    try:
        pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[0]
    except OSError:
        return None
    return int(pages) * os.sysconf("SC_PAGE_SIZE")
