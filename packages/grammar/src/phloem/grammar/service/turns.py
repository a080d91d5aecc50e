"""Whose turn it is: which job a worker takes next, and which must make room for others.

What a constraint will cost is seen only by compiling it. So each starts as a new one, and is a long
one once it has used `Limits.brief_seconds`, or taken `SLOWDOWN` times as long by the clock. Long
ones keep all workers but one to themselves, first come first served, and new ones the last: few
that take long hold up only each other. Processes and threads are `pool`'s.
"""

from __future__ import annotations

from collections import deque
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
    future: Future[Frame] = field(default_factory=Future)
    worker: WorkerProcess | None = None
    """Who is at it."""
    long: bool = False
    preempted: bool = False
    """Its worker is killed for others; it waits again."""
    deaths: list[WorkerDied] = field(default_factory=list)
    """How workers that were at it died, of it or of something else."""


class Turns:
    """The jobs that wait and those that run. Not synchronized; the pool is its one user."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._lanes = max(limits.workers - 1, 1)
        """How many long jobs nobody can preempt; the only worker there is must do them too."""
        self._new: deque[Job] = deque()
        self._long: deque[Job] = deque()
        self._running: list[Job] = []
        """The long ones in the order in which they became so."""

    @property
    def jobs(self) -> list[Job]:
        """All of them."""
        return [*self._new, *self._long, *self._running]

    def add(self, job: Job) -> None:
        """Let a job wait behind its like.

        Raises:
            Overloaded: if too many do.
        """
        queue, most = self._new, self._limits.waiting + self._free
        if job.long:
            queue, most = self._long, self._limits.waiting_long
        if len(queue) >= most:
            raise Overloaded(
                f"{len(queue)} constraints wait to be compiled, as many as may: try again later"
            )
        queue.append(job)

    def add_again(self, job: Job) -> None:
        """Let a job that has waited already be the next of its like."""
        (self._long if job.long else self._new).appendleft(job)

    def take(self) -> Job | None:
        """The next job, which runs from now on; None if there is none that may."""
        if self._long and sum(job.long for job in self._running) < self._lanes:
            job = self._long.popleft()
        elif self._new:
            job = self._new.popleft()
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
            if job in queue:
                queue.remove(job)

    @property
    def _free(self) -> int:
        """Workers that are at nothing, or soon will be."""
        going = sum(job.preempted for job in self._running)
        return self._limits.workers - len(self._running) + going
