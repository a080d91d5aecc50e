"""The pool of worker processes: hands requests to workers, and bounds and cancels what they do.

It knows nothing of constraints, and whose turn it is, is for `turns` to say. A thread of its own
serves each worker: it starts the process when there is a first request for it, keeps it while it is
idle, and replaces it at once when it died or had to be killed, so that the next request finds one
that is ready.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial

from phloem.grammar.service.frames import Frame
from phloem.grammar.service.limits import Crashed, Limits, Overloaded, TookTooLong
from phloem.grammar.service.process import WorkerDied, WorkerProcess
from phloem.grammar.service.turns import Job, Turns

_DEATHS = 2
"""How many workers may die at a request: one may have died of something else."""


class WorkerPool:
    """Answers requests in worker processes."""

    def __init__(self, setup: Callable[[], Frame], limits: Limits) -> None:
        """`setup` gives what a worker is told first."""
        self._setup = setup
        self._limits = limits
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._turns = Turns(limits)
        self._threads: list[threading.Thread] = []
        self._workers: list[WorkerProcess] = []
        self._closed = False

    def submit(self, request: Frame | None, owner: str = "") -> Future[Frame]:
        """Queue a request of somebody's, or None to have a worker started.

        Cancelling the future kills the worker that is at it. It raises `TookTooLong` if the request
        took too long, `Crashed` if two workers died of it, `Overloaded` if too many wait, and
        another `RuntimeError` if no worker can be had, or somebody killed two that were at it.
        """
        job = Job(request, owner)
        with self._lock:
            if self._closed:
                raise RuntimeError("the worker pool is closed")
            try:
                self._turns.add(job)
            except Overloaded as error:
                job.future.set_exception(error)
                return job.future
            if len(self._threads) < min(len(self._turns.jobs), self._limits.workers):
                name = f"grammar-worker-{len(self._threads)}"
                thread = threading.Thread(target=self._serve, name=name, daemon=True)
                self._threads.append(thread)
                thread.start()
            self._make_room()
            self._changed.notify_all()
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
            jobs = self._turns.jobs
            threads = list(self._threads)
            self._changed.notify_all()
        for job in jobs:
            job.future.cancel()
        for thread in threads:
            thread.join()

    def _cancelled(self, job: Job, future: Future[Frame]) -> None:
        if not future.cancelled():
            return
        with self._lock:
            self._turns.drop(job)
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

    def _next(self) -> Job | None:
        with self._lock:
            while not self._closed:
                job = self._turns.take()
                if job is not None:
                    return job
                self._changed.wait()
            return None

    def _make_room(self) -> None:
        for job in self._turns.preempt():
            if job.worker is not None:
                job.worker.kill()

    def _lengthen(self, job: Job) -> None:
        with self._lock:
            if not job.long:
                self._turns.lengthen(job)
                self._make_room()

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

    def _ask(self, job: Job, worker: WorkerProcess) -> Frame:
        with self._lock:
            if job.request is None or job.future.cancelled():
                return Frame({})
            job.worker = worker
        while True:
            reply = self._answer(job, job.request, worker)
            missing = reply.header.get("missing")
            if missing is None:
                return reply
            self._prepare(worker, Frame({"load": missing}))

    def _answer(self, job: Job, request: Frame, worker: WorkerProcess) -> Frame:
        try:
            return worker.ask(request, self._limits, partial(self._lengthen, job))
        except TimeoutError as error:
            worker.kill()
            raise self._too_long() from error
        except WorkerDied as death:
            if death.out_of_time:
                raise self._too_long() from death
            raise

    def _too_long(self) -> TookTooLong:
        seconds, patience = self._limits.seconds, self._limits.patience
        return TookTooLong(
            f"compiling this constraint takes longer than {seconds:g} seconds of processor time, "
            f"or {seconds * patience:g} by the clock: make it smaller, or raise the limit"
        )

    def _resolve(self, job: Job, reply: Frame | Exception) -> None:
        with self._lock:
            job.worker = None  # who cancels from here on must not kill it
            self._turns.end(job)
            result = self._outcome(job, reply)
            self._changed.notify_all()
        if result is None or not job.future.set_running_or_notify_cancel():
            return
        if isinstance(result, Frame):
            job.future.set_result(result)
        else:
            job.future.set_exception(result)

    def _outcome(self, job: Job, reply: Frame | Exception) -> Frame | Exception | None:
        """What a job comes to; None if it waits again, because it did not fail by itself."""
        if job.future.cancelled():
            return reply
        if job.preempted and not isinstance(reply, Frame | TookTooLong):
            job.preempted = False
            try:
                self._turns.add(job)
            except Overloaded as error:
                return error
            return None
        if not isinstance(reply, WorkerDied):
            return reply
        job.deaths.append(reply)
        if len(job.deaths) < _DEATHS:
            self._turns.add_again(job)
            return None
        return _blame(job.deaths)

    def _end(self, worker: WorkerProcess | None) -> None:
        if worker is None:
            return
        worker.close()
        with self._lock:
            if worker in self._workers:
                self._workers.remove(worker)


def _blame(deaths: list[WorkerDied]) -> Exception:
    """The error of a constraint that workers died at: its own, unless somebody killed one."""
    ways = ", ".join(str(death) for death in deaths)
    if any(death.from_outside for death in deaths):
        return RuntimeError(f"the processes that compiled a constraint were killed ({ways})")
    return Crashed(
        f"the processes that compiled this constraint died ({ways}): change it, or choose another "
        "backend"
    )
