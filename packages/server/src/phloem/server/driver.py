"""The thread in which an engine's event loop runs, and the way in and out of it.

Owns the thread, the inbox and who hears of which request. The scheduler is used by this thread
alone: others hand it work (`call`) and get each request's news through a sink.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from phloem.scheduler import EventLoop, RequestOutput, Scheduler

T = TypeVar("T")
Sink = Callable[["RequestOutput | EngineDead"], None]
"""Takes one request's news, in the loop's thread: it must be quick and must not raise."""


_SHUT_DOWN = "the engine was shut down: make a new one"


class EngineDead(RuntimeError):
    """The engine's loop has ended, by an error or by `shutdown`; nothing runs any more."""


class LoopDriver:
    """Runs a loop in a thread of its own, asleep while there is nothing to do."""

    def __init__(self, loop: EventLoop) -> None:
        self._loop = loop
        self._inbox: deque[Callable[[], None]] = deque()
        self._wake = threading.Condition()
        self._sinks: dict[str, Sink] = {}
        self._stopping = False
        self._dead: EngineDead | None = None
        self._thread = threading.Thread(target=self._run, name="phloem-loop", daemon=True)
        self._thread.start()

    def call(self, work: Callable[[Scheduler], T]) -> T:
        """Do `work` in the loop's thread, between two steps; returns or raises what it does.

        Raises:
            EngineDead: the loop has ended.
        """
        return self.submit(work).result()

    def submit(self, work: Callable[[Scheduler], T]) -> Future[T]:
        """As `call`, without waiting. Work is done in the order in which it was handed in.

        Raises:
            EngineDead: the loop has ended.
        """
        done: Future[T] = Future()

        def run() -> None:
            # From here on it cannot be cancelled, so setting its result cannot fail.
            if not done.set_running_or_notify_cancel():
                return
            try:
                done.set_result(work(self._loop.scheduler))
            except BaseException as error:
                done.set_exception(error)

        with self._wake:
            if self._dead is not None:
                raise self._dead
            if self._stopping:
                raise EngineDead(_SHUT_DOWN)
            self._inbox.append(run)
            self._wake.notify()
        return done

    def abort(self, rids: Sequence[str]) -> None:
        """End requests without waiting for it; those that have ended already do not matter."""

        def run() -> None:
            for rid in rids:
                self._loop.scheduler.abort(rid)

        with self._wake:
            if self._dead is None:
                self._inbox.append(run)
                self._wake.notify()

    def listen(self, rid: str, sink: Sink) -> None:
        """Send a request's news to `sink` until it has ended. From within handed-in work only."""
        self._sinks[rid] = sink

    def stop(self) -> None:
        """Abort what runs, end the thread and wait for it. May be called again."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        try:
            while self._take_inbox():
                self._deliver(self._loop.step())
            for rid in list(self._sinks):
                self._loop.scheduler.abort(rid)
            while not self._loop.idle:
                self._deliver(self._loop.step())
            self._end(EngineDead(_SHUT_DOWN))
        except BaseException as error:
            dead = EngineDead(f"the engine's loop failed: {error!r}")
            dead.__cause__ = error
            self._end(dead)

    def _take_inbox(self) -> bool:
        """Do what was handed in, waiting for it while the loop is idle; False: time to stop."""
        with self._wake:
            while not self._inbox and self._loop.idle and not self._stopping:
                self._wake.wait()
            handed_in = len(self._inbox)
        for _ in range(handed_in):
            self._inbox.popleft()()
        return not self._stopping

    def _deliver(self, outputs: list[RequestOutput]) -> None:
        for output in outputs:
            sink = self._sinks.get(output.rid)
            if output.finish_reason is not None:
                self._sinks.pop(output.rid, None)
            if sink is not None:
                sink(output)

    def _end(self, dead: EngineDead) -> None:
        with self._wake:
            self._dead = dead
            work, self._inbox = self._inbox, deque()
        # Work handed in too late runs all the same: its caller waits for it.
        for run in work:
            run()
        for sink in self._sinks.values():
            sink(dead)
        self._sinks.clear()


def raise_if_dead(news: Any) -> RequestOutput:
    """The output that a sink got.

    Raises:
        EngineDead: that is what it got instead.
    """
    if isinstance(news, EngineDead):
        raise news
    output: RequestOutput = news
    return output
