"""The service's side of one worker process: starting it, asking it, killing it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from contextlib import suppress
from queue import Empty, SimpleQueue

from phloem.grammar.service.frames import Frame, read_frame, write_frame
from phloem.grammar.service.limits import LOWEST, lower_priority

_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""Compiling is no matter of linear algebra, whose idle threads would only take address space."""


class WorkerDied(Exception):
    """The process ended without an answer; the message says how."""


class WorkerProcess:
    """One worker. It is asked by one thread at a time, and may be killed by any."""

    def __init__(self, nice: int) -> None:
        """Start it, at a priority; see `lower_priority`.

        Raises:
            OSError: if the system has no process to give.
        """
        # As with `python -m`, but the search path is ours, not the current folder's.
        code = (
            f"import sys; sys.path[:] = {sys.path!r}; "
            "from phloem.grammar.service.worker import main; main()"
        )
        self._process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # The terminal's Ctrl-C is for the service, and `lower_priority` lowers a session.
            start_new_session=True,
            env={**os.environ, **_ONE_THREAD},
        )
        lower_priority(self._process.pid, nice)
        self._replies: SimpleQueue[Frame | None] = SimpleQueue()
        self._gone = False
        self._reader = threading.Thread(target=self._read, name="grammar-replies", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def usable(self) -> bool:
        """Whether it can be asked again."""
        # While another thread waits for its end, `poll` does not tell; that one has set `_gone`.
        return not self._gone and self._process.poll() is None

    def ask(self, request: Frame, seconds: float, brief_seconds: float | None = None) -> Frame:
        """Send a request and wait for the answer.

        A worker that needs more than `brief_seconds` goes on at the lowest priority; as it will
        keep that, it is of no use afterwards.

        Raises:
            WorkerDied: if it has ended, or ends before it answers.
            TimeoutError: if that takes longer than `seconds`; the worker is then of no more use.
        """
        started = time.monotonic()
        assert self._process.stdin is not None, "it was made as a pipe"
        try:
            write_frame(self._process.stdin, request)
        except OSError:  # it has ended, and its last reply is None
            self._reader.join()
        if brief_seconds is not None and brief_seconds < seconds:
            try:
                return self._reply_by(started + brief_seconds)
            except TimeoutError:
                self._gone = True
                lower_priority(self.pid, LOWEST)
        return self._reply_by(started + seconds)

    def _reply_by(self, until: float) -> Frame:
        try:
            reply = self._replies.get(timeout=max(0.0, until - time.monotonic()))
        except Empty:
            raise TimeoutError from None
        if reply is None:
            raise WorkerDied(_cause(self._process.returncode))
        if reply.header.get("last"):
            self._gone = True
        return reply

    def kill(self) -> None:
        """End it at once, without waiting for that."""
        self._gone = True
        self._process.kill()

    def close(self) -> None:
        """End it, and wait until nothing of it is left."""
        self.kill()
        self._reader.join()
        assert self._process.stdin is not None, "it was made as a pipe"
        with suppress(OSError):  # of what was not sent
            self._process.stdin.close()

    def _read(self) -> None:
        assert self._process.stdout is not None, "it was made as a pipe"
        with self._process.stdout as stdout:
            # A worker that says something else than frames is as good as dead.
            with suppress(EOFError, ValueError, OSError):
                while True:
                    self._replies.put(read_frame(stdout))
            self.kill()
        self._process.wait()
        self._replies.put(None)


def _cause(status: int) -> str:
    return f"exit status {status}" if status >= 0 else f"signal {-status}"
