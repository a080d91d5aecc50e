"""Whose turn it is: which job a worker takes next, and which must make room for others.

What a constraint will cost is seen only by compiling it. So each starts as a new one, and is a long
one once it has used `Limits.brief_seconds`, or taken `SLOWDOWN` times as long by the clock. Long
ones keep all workers but one to themselves, first come first served, and new ones the last: few
that take long hold up only each other. Among its like, owners have their turns one after the other,
however many jobs each has. Processes and threads are `pool`'s.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import islice

from phloem.grammar.service.frames import Frame
from phloem.grammar.service.limits import Limits, Overloaded
from phloem.grammar.service.process import WorkerDied, WorkerProcess


@dataclass(eq=False, slots=True)
class Job:
    """A request on its way through the pool."""

    request: Frame | None
    """None: only have a worker started."""
    owner: str = ""
    """Who wants it."""
    future: Future[Frame] = field(default_factory=Future)
    worker: WorkerProcess | None = None
    """Who is at it."""
    long: bool = False
    preempted: bool = False
    """Its worker is killed for others; it waits again."""
    deaths: list[WorkerDied] = field(default_factory=list)
    """How workers that were at it died, of it or of something else."""


class Queue:
    """Jobs that wait: owners in turn, and of each the jobs in their order."""

    def __init__(self) -> None:
        self._of: dict[str, deque[Job]] = {}
        """By owner, whose turn is next first; nobody has none."""

    def __iter__(self) -> Iterator[Job]:
        return (job for jobs in self._of.values() for job in jobs)

    def __len__(self) -> int:
        return sum(map(len, self._of.values()))

    def has_room(self, owner: str, most: int) -> bool:
        """Whether one more of this owner may wait: `most` do in all, and beyond that those of whom
        has less than an equal share of it, since others have theirs and more."""
        own = len(self._of.get(owner, ()))
        return len(self) < most or own < most // len(self._of.keys() | {owner})

    def append(self, job: Job) -> None:
        """Let it wait behind those of its owner."""
        self._of.setdefault(job.owner, deque()).append(job)

    def prepend(self, job: Job) -> None:
        """Let it be the next."""
        jobs = self._of.pop(job.owner, deque())
        jobs.appendleft(job)
        self._of = {job.owner: jobs} | self._of

    def pop(self) -> Job:
        """Take the next; its owner is the last then."""
        owner = next(iter(self._of))
        jobs = self._of.pop(owner)
        job = jobs.popleft()
        if jobs:
            self._of[owner] = jobs
        return job

    def discard(self, job: Job) -> None:
        """Forget one, if it waits."""
        jobs = self._of.get(job.owner, deque())
        if job in jobs:
            jobs.remove(job)
            if not jobs:
                del self._of[job.owner]


class Turns:
    """The jobs that wait and those that run. Not synchronized; the pool is its one user."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._lanes = max(limits.workers - 1, 1)
        """How many long jobs nobody can preempt; the only worker there is must do them too."""
        self._new = Queue()
        self._long = Queue()
        self._running: list[Job] = []
        """The long ones in the order in which they became so."""

    @property
    def jobs(self) -> list[Job]:
        """All of them."""
        return [*self._new, *self._long, *self._running]

    def add(self, job: Job) -> None:
        """Let a job wait behind its owner's others of its like.

        Raises:
            Overloaded: if too many do.
        """
        queue, most = self._new, self._limits.waiting + self._free
        if job.long:
            queue, most = self._long, self._limits.waiting_long
        if not queue.has_room(job.owner, most):
            raise Overloaded(
                f"{len(queue)} constraints wait to be compiled, as many as may: try again later"
            )
        queue.append(job)

    def add_again(self, job: Job) -> None:
        """Let a job that has waited already be the next of its like."""
        (self._long if job.long else self._new).prepend(job)

    def take(self) -> Job | None:
        """The next job, which runs from now on; None if there is none that may."""
        if self._long and sum(job.long for job in self._running) < self._lanes:
            job = self._long.pop()
        elif self._new:
            job = self._new.pop()
        else:
            return None
        self._running.append(job)
        return job

    def lengthen(self, job: Job) -> None:
        """A running job is a long one from now on."""
        job.long = True
        self._running.remove(job)
        self._running.append(job)

    def preempt(self) -> list[Job]:
        """The running jobs that must make room for new ones, marked as `preempted`.

        They are of the long ones beyond those that have a worker to themselves, which may go on
        only while no new one waits.
        """
        long = [job for job in self._running if job.long and not job.preempted]
        wanted = max(len(self._new) - self._free, 0)
        victims = list(islice(reversed(long[self._lanes :]), wanted))
        for job in victims:
            job.preempted = True
        return victims

    def end(self, job: Job) -> None:
        """A job runs no longer."""
        self._running.remove(job)

    def drop(self, job: Job) -> None:
        """A job waits no longer, if it did."""
        for queue in (self._new, self._long):
            queue.discard(job)

    @property
    def _free(self) -> int:
        """Workers that are at nothing, or soon will be."""
        going = sum(job.preempted for job in self._running)
        return self._limits.workers - len(self._running) + going
