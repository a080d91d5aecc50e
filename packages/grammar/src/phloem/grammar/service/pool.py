"""The pool of worker processes: hands requests to workers, and bounds and cancels what they do.

It knows nothing of constraints. A thread of its own serves each worker: it starts the process when
there is a first request for it, keeps it while it is idle, and replaces it at once when it died or
had to be killed, so that the next request finds one that is ready.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field

from phloem.grammar.errors import GrammarError
from phloem.grammar.service.frames import Frame
from phloem.grammar.service.limits import Limits, TookTooLong
from phloem.grammar.service.process import WorkerDied, WorkerProcess


@dataclass(eq=False, slots=True)
class _Job:
    request: Frame | None
    """None: only have a worker started."""
    future: Future[Frame] = field(default_factory=Future)
    worker: WorkerProcess | None = None
    """Who is at it."""


class WorkerPool:
    """Answers requests in worker processes."""

    def __init__(self, setup: Callable[[], Frame], limits: Limits) -> None:
        """`setup` gives what a worker is told first."""
        self._setup = setup
        self._limits = limits
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._waiting: deque[_Job] = deque()
        self._running: list[_Job] = []
        self._threads: list[threading.Thread] = []
        self._workers: list[WorkerProcess] = []
        self._closed = False

    def submit(self, request: Frame | None) -> Future[Frame]:
        """Queue a request, or None to have a worker started.

        Cancelling the future kills the worker that is at it. It raises `TookTooLong` if the request
        took too long, `GrammarError` if the worker died of it, and `RuntimeError` if no
        worker can be had.
        """
        job = _Job(request)
        with self._lock:
            if self._closed:
                raise RuntimeError("the worker pool is closed")
            self._waiting.append(job)
            needed = len(self._waiting) + len(self._running)
            if len(self._threads) < min(needed, self._limits.workers):
                name = f"grammar-worker-{len(self._threads)}"
                thread = threading.Thread(target=self._serve, name=name, daemon=True)
                self._threads.append(thread)
                thread.start()
            self._changed.notify()
        job.future.add_done_callback(lambda future: self._cancelled(job, future))
        return job.future

    @property
    def pids(self) -> list[int]:
        """The process ids of the workers."""
        with self._lock:
            return [worker.pid for worker in self._workers]

    def close(self) -> None:
        """Cancel everything, end the workers, and wait until nothing of them is left."""
        with self._lock:
            self._closed = True
            for worker in self._workers:
                worker.kill()
            jobs = [*self._waiting, *self._running]
            threads = list(self._threads)
            self._changed.notify_all()
        for job in jobs:
            job.future.cancel()
        for thread in threads:
            thread.join()

    def _cancelled(self, job: _Job, future: Future[Frame]) -> None:
        if not future.cancelled():
            return
        with self._lock:
            if job in self._waiting:
                self._waiting.remove(job)
            if job.worker is not None:
                job.worker.kill()

    def _serve(self) -> None:
        worker: WorkerProcess | None = None
        while (job := self._next()) is not None:
            reply: Frame | Exception
            try:
                worker = self._ready(worker)
                reply = self._ask(job, worker)
            except Exception as error:
                reply = error
            self._resolve(job, reply)
            if not isinstance(reply, RuntimeError):
                with suppress(RuntimeError):  # the next request tells
                    worker = self._ready(worker)
        self._end(worker)

    def _ready(self, worker: WorkerProcess | None) -> WorkerProcess:
        """This worker, or one in its place."""
        if worker is not None and worker.usable:
            return worker
        self._end(worker)
        return self._start()

    def _next(self) -> _Job | None:
        with self._lock:
            self._changed.wait_for(lambda: self._closed or self._waiting)
            if self._closed:
                return None
            job = self._waiting.popleft()
            self._running.append(job)
            return job

    def _start(self) -> WorkerProcess:
        if self._closed:
            raise RuntimeError("the worker pool is closed")
        try:
            worker = WorkerProcess()
        except OSError as error:
            raise RuntimeError(f"no process can be started to compile in: {error}") from error
        with self._lock:
            self._workers.append(worker)
            if self._closed:
                worker.kill()
        try:
            self._prepare(worker, self._setup())
        except BaseException:
            self._end(worker)
            raise
        return worker

    def _prepare(self, worker: WorkerProcess, request: Frame) -> None:
        """Have a worker get ready for what follows, at the priority of this process."""
        try:
            ready = worker.prepare(request, self._limits.start_seconds)
        except WorkerDied as death:
            raise RuntimeError(f"a process to compile in died as it started ({death})") from death
        except TimeoutError as error:
            worker.kill()
            raise RuntimeError(
                f"a process to compile in took longer than {self._limits.start_seconds:g} seconds "
                "to start"
            ) from error
        if "failed" in ready.header:
            raise RuntimeError(f"constraints cannot be compiled: {ready.header['failed']}")

    def _ask(self, job: _Job, worker: WorkerProcess) -> Frame:
        with self._lock:
            if job.request is None or job.future.cancelled():
                return Frame({})
            job.worker = worker
        while True:
            reply = self._answer(job.request, worker)
            missing = reply.header.get("missing")
            if missing is None:
                return reply
            self._prepare(worker, Frame({"load": missing}))

    def _answer(self, request: Frame, worker: WorkerProcess) -> Frame:
        limits = self._limits
        try:
            return worker.ask(request, limits)
        except TimeoutError as error:
            worker.kill()
            raise self._too_long() from error
        except WorkerDied as death:
            if death.out_of_time:
                raise self._too_long() from death
            raise GrammarError(
                f"the process that compiled this constraint died ({death}): change it, or choose "
                "another backend"
            ) from death

    def _too_long(self) -> TookTooLong:
        return TookTooLong(
            f"compiling this constraint takes longer than {self._limits.seconds:g} seconds of "
            "processor time: make it smaller, or raise the limit"
        )

    def _resolve(self, job: _Job, reply: Frame | Exception) -> None:
        with self._lock:
            job.worker = None  # who cancels from here on must not kill it
            self._running.remove(job)
        if not job.future.set_running_or_notify_cancel():
            return
        if isinstance(reply, Frame):
            job.future.set_result(reply)
        else:
            job.future.set_exception(reply)

    def _end(self, worker: WorkerProcess | None) -> None:
        if worker is None:
            return
        worker.close()
        with self._lock:
            if worker in self._workers:
                self._workers.remove(worker)
