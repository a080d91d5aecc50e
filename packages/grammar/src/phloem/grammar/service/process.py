"""The service's side of one worker process: starting it, asking it, killing it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue

from phloem.grammar.service.frames import Frame, read_frame, write_frame
from phloem.grammar.service.limits import (
    BRIEF_PATIENCE,
    LOWEST,
    SLOWDOWN,
    Limits,
    lower_other_threads,
    processor_seconds,
    set_session_priority,
)

_SMALL = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "MALLOC_ARENA_MAX": "1",
}
"""Compiling is no matter of linear algebra, whose idle threads would only take address space, as
would a heap for each thread."""

_OUTSIDERS = {getattr(signal, name, None) for name in ("SIGKILL", "SIGTERM", "SIGHUP")}

_LOOK_SECONDS = 0.25
"""How often a worker that takes long is looked at."""


class WorkerDied(Exception):
    """The process ended without an answer; the message says how."""

    def __init__(self, status: int) -> None:
        super().__init__(f"exit status {status}" if status >= 0 else f"signal {-status}")
        self.out_of_time = status == -getattr(signal, "SIGXCPU", 0) != 0
        """The system ended it, because it had used up its processor time."""
        self.from_outside = -status in _OUTSIDERS
        """Somebody ended it: an operator, or the system for want of memory."""


class WorkerProcess:
    """One worker. It is asked by one thread at a time, and may be killed by any."""

    def __init__(self) -> None:
        """Start it.

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
            # The terminal's Ctrl-C is for the service, and a session has a priority.
            start_new_session=True,
            env={**os.environ, **_SMALL},
        )
        self._session_nice = 0
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

    def prepare(self, request: Frame, seconds: float) -> Frame:
        """Send what is no constraint, and wait for the answer; at the priority of this process.

        Raises:
            WorkerDied: if it has ended, or ends before it answers.
            TimeoutError: if that takes longer than `seconds`.
        """
        self._prioritize(0)
        self._send(request)
        return self._reply(seconds)

    def ask(self, request: Frame, limits: Limits, on_long: Callable[[], None]) -> Frame:
        """Send a constraint, and wait for the answer, which is worked on at a low priority.

        `on_long` is called, perhaps more than once, when it has used `limits.brief_seconds`, or has
        been at it for `SLOWDOWN` times as long by the clock.

        Raises:
            WorkerDied: if it has ended, or ends before it answers.
            TimeoutError: if that takes too long; the worker is then of no more use.
        """
        self._prioritize(limits.nice)
        used = _Stopwatch(self.pid)
        self._send(request)
        by_clock_limit = limits.seconds * limits.patience * BRIEF_PATIENCE
        long = False
        while True:
            seconds, by_clock = used.seconds()
            if not long and seconds >= limits.brief_seconds:
                long = True
                by_clock_limit = by_clock + limits.seconds * limits.patience
            if long or by_clock >= limits.brief_seconds * SLOWDOWN:
                on_long()
            left = min(limits.seconds - seconds, by_clock_limit - by_clock)
            if left <= 0:
                raise TimeoutError
            if long:
                self._prioritize(LOWEST)
                lower_other_threads(self.pid)  # again and again, since it may start more
                pause = min(left, _LOOK_SECONDS)
            else:
                pause = min(left, limits.brief_seconds - seconds)
            with suppress(TimeoutError):  # one thread uses no more than passes by the clock
                return self._reply(max(pause, 0.01))

    def _prioritize(self, nice: int) -> None:
        if nice != self._session_nice:
            set_session_priority(self.pid, nice)
            self._session_nice = nice

    def _send(self, request: Frame) -> None:
        assert self._process.stdin is not None, "it was made as a pipe"
        try:
            write_frame(self._process.stdin, request)
        except OSError:  # it has ended, and its last reply is None
            self._reader.join()

    def _reply(self, seconds: float) -> Frame:
        try:
            reply = self._replies.get(timeout=seconds)
        except Empty:
            raise TimeoutError from None
        if reply is None:
            raise WorkerDied(self._process.returncode)
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


class _Stopwatch:
    """What a process uses from now on."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._clock = time.monotonic()
        self._processor = processor_seconds(pid)

    def seconds(self) -> tuple[float, float]:
        """Of processor time, or where the system does not tell by the clock; and by the clock."""
        by_clock = time.monotonic() - self._clock
        now = processor_seconds(self._pid)
        if now is None or self._processor is None:
            return by_clock, by_clock
        return now - self._processor, by_clock
