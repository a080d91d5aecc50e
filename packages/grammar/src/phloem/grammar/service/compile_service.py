"""Compiling off the loop: `CompileService`.

Owns who waits for what: requests for equal constraints share one job, which goes on while one of
them is interested, and what comes out is kept in memory and on disk. The processes are `pool`'s.
"""

from __future__ import annotations

import copy
import pickle
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from phloem.grammar.constraint import Constraint
from phloem.grammar.errors import ConstraintTooComplex, GrammarError
from phloem.grammar.service.caches import CompiledCache, CompiledConstraint, RecentErrors
from phloem.grammar.service.frames import Frame, error_of
from phloem.grammar.service.limits import Crashed, Limits, TookTooLong
from phloem.grammar.service.pool import WorkerPool
from phloem.grammar.service.store import Store
from phloem.grammar.service.support import SupportReport
from phloem.grammar.vocabulary import Vocabulary

_CLOSED = "the compile service was closed"


class ServiceStats(NamedTuple):
    """What a service has done so far."""

    compiled: int
    """Constraints that workers compiled."""
    failed: int
    """Constraints that workers did not."""
    from_memory: int
    """Answers from memory, those that share a job in flight included."""
    from_disk: int
    """Answers from disk."""


@dataclass(eq=False, slots=True)
class _Job:
    key: str
    request: Frame
    read: Callable[[Frame], Any]
    """Makes the result of a worker's reply."""
    owner: str = ""
    waiters: list[Future[Any]] = field(default_factory=list)
    work: Future[Frame] | None = None
    """A worker's answer, once it is asked."""


class CompileService:
    """Compiles constraints in processes of low priority. Its methods may be called by any
    thread, and do not block unless they say so."""

    def __init__(
        self,
        backend: str,
        vocabulary: Vocabulary,
        *,
        limits: Limits | None = None,
        folder: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Nothing is started yet.

        Args:
            backend: what `create_backend` takes: a name, or `module:function`.
            vocabulary: what to compile for.
            limits: bounds; None: the usual ones.
            folder: where compiled constraints outlive this process; None: nowhere. The output of
                a `module:function` is told from that of others by this name alone.
            clock: seconds, for how long errors are remembered.
        """
        self._backend = backend
        self._vocabulary = vocabulary
        self._limits = limits or Limits()
        self._pool = WorkerPool(self._setup, self._limits)
        self._pickled: bytes | None = None
        self._lock = threading.Lock()
        self._jobs: dict[str, _Job] = {}
        self._compiled = CompiledCache(self._limits.cache_bytes)
        self._errors = RecentErrors(clock)
        self._store: Store | None = None
        self._disk: ThreadPoolExecutor | None = None
        if folder is not None:
            size = self._limits.store_bytes
            self._store = Store(folder, size, backend, vocabulary.fingerprint)
            self._disk = ThreadPoolExecutor(1, thread_name_prefix="grammar-store")
        self._stats = ServiceStats(0, 0, 0, 0)
        self._closed = False

    def __enter__(self) -> CompileService:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def submit(self, constraint: Constraint, owner: str = "") -> Future[CompiledConstraint]:
        """Compile a constraint, or find it compiled for the same owner: how long it takes tells
        one owner nothing of the constraints of others. An owner has no null character. Owners have
        their turns at the workers one after the other, however many constraints each has.

        The future can be cancelled at any time; when all that wait for an equal constraint have
        done so, the worker that is at it is killed. It raises what `GrammarBackend.compile` raises,
        `GrammarError` too if two workers died of it, `Overloaded` if too many constraints wait, and
        another `RuntimeError` if no worker can be had, or is left alive, or the service was closed.
        """
        key = _key_of(constraint, owner)
        request = Frame({"constraint": asdict(constraint)})
        return self._share(_Job(key, request, partial(self._read_compiled, key), owner))

    def check(
        self, constraint: Constraint, backends: Sequence[str], owner: str = ""
    ) -> Future[SupportReport]:
        """`support.check` in a worker; shared, cancelled and bounded as `submit`."""
        key = "\0".join((_key_of(constraint, owner), *backends))
        request = Frame({"constraint": asdict(constraint), "check": list(backends)})
        return self._share(_Job(key, request, _read_report, owner))

    def compile(self, constraint: Constraint, timeout: float | None = None) -> CompiledConstraint:
        """`submit`, and wait for it, at most `timeout` seconds.

        Raises:
            ConstraintTooComplex: if that was not enough.
            GrammarError, Overloaded, RuntimeError: as the future of `submit`.
        """
        future = self.submit(constraint)
        try:
            return future.result(timeout)
        except FutureTimeout:
            raise ConstraintTooComplex(
                f"compiling this constraint took longer than {timeout:g} seconds: make it smaller, "
                "or wait longer"
            ) from None
        finally:
            future.cancel()  # also when the wait was interrupted

    def start(self) -> Future[None]:
        """Start a worker before the first constraint comes; the future is done when it is ready."""
        started: Future[None] = Future()
        started.set_running_or_notify_cancel()

        def ready(work: Future[Frame]) -> None:
            error = RuntimeError(_CLOSED) if work.cancelled() else work.exception()
            started.set_exception(error) if error else started.set_result(None)

        self._pool.submit(None).add_done_callback(ready)
        return started

    @property
    def stats(self) -> ServiceStats:
        """Counts of what was done so far."""
        return self._stats

    @property
    def worker_pids(self) -> list[int]:
        """The process ids of the workers that there are."""
        return self._pool.pids

    def close(self) -> None:
        """End the workers, and wait for that. What is still waited for raises `RuntimeError`."""
        with self._lock:
            self._closed = True
        self._pool.close()
        if self._disk is not None:
            self._disk.shutdown()  # what was compiled is written
        with self._lock:
            jobs = list(self._jobs.values())
        for job in jobs:
            self._resolve(job, RuntimeError(_CLOSED))

    def _share(self, job: _Job) -> Future[Any]:
        """Answer from memory, or wait with those who asked the same, or begin."""
        waiter: Future[Any] = Future()
        with self._lock:
            if self._closed:
                raise RuntimeError(_CLOSED)
            known = self._compiled.get(job.key)
            error = self._errors.get(job.key)
            running = self._jobs.get(job.key)
            if known or error or running:
                self._count(from_memory=1)
            if known:
                waiter.set_result(known)
                return waiter
            if error:
                waiter.set_exception(error)
                return waiter
            if running:
                job = running
            else:
                self._jobs[job.key] = job
            job.waiters.append(waiter)
        waiter.add_done_callback(partial(self._left, job))
        if not running:
            self._begin(job)
        return waiter

    def _begin(self, job: _Job) -> None:
        if self._disk is None or "check" in job.request.header:
            self._send(job)
            return
        try:
            self._disk.submit(self._look_up, job)
        except RuntimeError:  # closed since
            self._resolve(job, RuntimeError(_CLOSED))

    def _look_up(self, job: _Job) -> None:
        assert self._store is not None, "only services with a folder look there"
        data = self._store.get(job.key)
        if data is None:
            self._send(job)
            return
        compiled = CompiledConstraint(job.key, self._backend, data)
        with self._lock:
            self._count(from_disk=1)
            self._compiled.put(compiled)
        self._resolve(job, compiled)

    def _send(self, job: _Job) -> None:
        with self._lock:
            if not job.waiters:
                return
            try:
                work = job.work = self._pool.submit(job.request, job.owner)
            except RuntimeError:  # closed since, which resolves all jobs
                return
        work.add_done_callback(partial(self._done, job))

    def _done(self, job: _Job, work: Future[Frame]) -> None:
        if work.cancelled():
            return  # nobody waits, or the service is closed, which resolves all jobs
        error = work.exception() or error_of(work.result())
        result = error or job.read(work.result())
        with self._lock:
            if isinstance(error, GrammarError):
                self._count(failed=1)
                limits = self._limits
                again = isinstance(error, TookTooLong | Crashed)  # may be otherwise then
                seconds = limits.late_seconds if again else limits.error_seconds
                self._errors.put(job.key, error, seconds)
            elif isinstance(result, CompiledConstraint):
                self._count(compiled=1)
                self._compiled.put(result)
                if self._store is not None and self._disk is not None:
                    self._disk.submit(self._store.put, job.key, result.data)
        self._resolve(job, result)

    def _left(self, job: _Job, waiter: Future[Any]) -> None:
        if not waiter.cancelled():
            return
        with self._lock:
            if waiter not in job.waiters:
                return
            job.waiters.remove(waiter)
            if job.waiters:
                return
            self._jobs.pop(job.key, None)
            work = job.work
        if work is not None:
            work.cancel()

    def _resolve(self, job: _Job, result: Any) -> None:
        with self._lock:
            if self._jobs.get(job.key) is job:
                del self._jobs[job.key]
            waiters, job.waiters = job.waiters, []
        for waiter in waiters:
            if not waiter.set_running_or_notify_cancel():
                continue
            if isinstance(result, Exception):
                waiter.set_exception(copy.copy(result))  # raising one adds to it
            else:
                waiter.set_result(result)

    def _count(self, **more: int) -> None:
        changed = {name: getattr(self._stats, name) + count for name, count in more.items()}
        self._stats = self._stats._replace(**changed)

    def _setup(self) -> Frame:
        if self._pickled is None:  # two threads may both do it
            self._pickled = pickle.dumps(self._vocabulary, pickle.HIGHEST_PROTOCOL)
        limits = self._limits
        header = {
            "backend": self._backend,
            "nice": limits.nice,
            "seconds": limits.seconds,
            "memory_bytes": limits.memory_bytes,
        }
        return Frame(header, self._pickled)

    def _read_compiled(self, key: str, reply: Frame) -> CompiledConstraint:
        return CompiledConstraint(key, self._backend, reply.data)


def _key_of(constraint: Constraint, owner: str) -> str:
    return f"{owner}\0{constraint.key}" if owner else constraint.key


def _read_report(reply: Frame) -> SupportReport:
    return SupportReport.from_json(reply.header["report"])
