"""The thread in which an engine's event loop runs, and the way in and out of it.

Owns the thread, the inbox and who hears of which request. The scheduler is used by this thread
alone: others hand it work (`call`) and get each request's news through a sink.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from phloem.scheduler import EventLoop, RequestOutput, Scheduler

T = TypeVar("T")
Sink = Callable[["RequestOutput | EngineDead"], None]
"""Takes one request's news, in the loop's thread: it must be quick."""

_SHUT_DOWN = "the engine was shut down: make a new one"

logger = logging.getLogger(__name__)


class EngineDead(RuntimeError):
    """The engine's loop has ended, by an error or by `shutdown`; nothing runs any more."""


class LoopDriver:
    """Runs a loop in a thread of its own, asleep while there is nothing to do."""

    def __init__(self, loop: EventLoop) -> None:
        self._inbox: deque[_Work] = deque()
        self._wake = threading.Condition()
        self._sinks: dict[str, Sink] = {}
        self._stopping = False
        self._dead = ""
        """Why the loop has ended; empty while it runs."""
        self._cause: BaseException | None = None
        # The thread alone holds the loop, so that the loop's memory is free when the thread ends.
        self._thread = threading.Thread(
            target=self._run, args=(loop,), name="phloem-loop", daemon=True
        )
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
        handed_in = _Work(work)
        with self._wake:
            if self._dead or self._stopping:
                raise self._death()
            self._inbox.append(handed_in)
            self._wake.notify()
        return handed_in.done

    def abort(self, rids: Sequence[str]) -> None:
        """End requests without waiting for it; those that have ended already do not matter."""

        def end(scheduler: Scheduler) -> None:
            for rid in rids:
                scheduler.abort(rid)

        with self._wake:
            if not self._dead:
                self._inbox.append(_Work(end))
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

    def _run(self, loop: EventLoop) -> None:
        try:
            while self._take_inbox(loop):
                self._deliver(loop.step())
            for rid in list(self._sinks):
                loop.scheduler.abort(rid)
            while not loop.idle:
                self._deliver(loop.step())
            self._end(_SHUT_DOWN)
        except BaseException as error:
            self._end(f"the engine's loop failed: {error!r}", error)

    def _take_inbox(self, loop: EventLoop) -> bool:
        """Do what was handed in, waiting for it, or for a time limit of some request, while the
        loop is idle; False: time to stop.
        """
        with self._wake:
            while not self._inbox and loop.idle and not self._stopping:
                if not self._wake.wait(loop.scheduler.due_in()):
                    break
            handed_in = len(self._inbox)
        for _ in range(handed_in):
            self._inbox.popleft().do(loop.scheduler)
        return not self._stopping

    def _deliver(self, outputs: Iterable[RequestOutput]) -> None:
        for output in outputs:
            sink = self._sinks.get(output.rid)
            if output.finish_reason is not None:
                self._sinks.pop(output.rid, None)
            if sink is not None:
                _tell(sink, output)

    def _end(self, dead: str, cause: BaseException | None = None) -> None:
        with self._wake:
            self._dead, self._cause = dead, cause
            too_late, self._inbox = self._inbox, deque()
        for work in too_late:
            work.refuse(self._death())
        for sink in self._sinks.values():
            _tell(sink, self._death())
        self._sinks.clear()

    def _death(self) -> EngineDead:
        """A new error each time: a raised one gathers the frames of all who raised it."""
        error = EngineDead(self._dead or _SHUT_DOWN)
        error.__cause__ = self._cause
        return error


class _Work:
    """Something to be done in the loop's thread, and the future of what it gives."""

    def __init__(self, work: Callable[[Scheduler], Any]) -> None:
        self._work = work
        self.done: Future[Any] = Future()

    def do(self, scheduler: Scheduler) -> None:
        # From here on it cannot be cancelled, so setting its result cannot fail.
        if not self.done.set_running_or_notify_cancel():
            return
        try:
            self.done.set_result(self._work(scheduler))
        except BaseException as error:
            self.done.set_exception(error)

    def refuse(self, error: EngineDead) -> None:
        if self.done.set_running_or_notify_cancel():
            self.done.set_exception(error)


def _tell(sink: Sink, news: RequestOutput | EngineDead) -> None:
    try:
        sink(news)
    except Exception:  # a listener that is gone must not end the loop for all others
        logger.exception("a listener failed on the news of its request")


def raise_if_dead(news: Any) -> RequestOutput:
    """The output that a sink got.

    Raises:
        EngineDead: that is what it got instead.
    """
    if isinstance(news, EngineDead):
        raise news
    output: RequestOutput = news
    return output
