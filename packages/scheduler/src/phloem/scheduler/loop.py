"""The event loops: they carry batches from the scheduler to a runner and results back.

`NormalLoop` does one step after the other. `OverlapLoop` takes a step's result in while the next
step runs, so that scheduling costs no model time. Both are driven one `step()` at a time, by tests
as by servers, and give the same output. Neither sleeps or reads a clock: who drives them does. They
wait for steps, and for a moment at most for a copy between cache tiers if there is nothing else.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

from phloem.scheduler.batch import ScheduleBatch
from phloem.scheduler.news import News
from phloem.scheduler.ports import Runner, Step
from phloem.scheduler.scheduler import Scheduler

_COPY_WAIT = 0.005
"""Seconds to wait at once for a copy between tiers; a request that comes meanwhile waits too."""


class EventLoop(Protocol):
    """A scheduler and a runner, driven step by step."""

    scheduler: Scheduler

    def step(self) -> News:
        """Go on by one step; the news that came of it, of earlier aborts too."""
        ...

    @property
    def idle(self) -> bool:
        """Whether a step would do nothing: no requests, nothing in flight, no copies to finish."""
        ...


class NormalLoop:
    """Schedule, run, process; nothing is in flight between two steps."""

    def __init__(self, scheduler: Scheduler, runner: Runner) -> None:
        self.scheduler = scheduler
        self._runner = runner

    @property
    def idle(self) -> bool:
        """Whether a step would do nothing."""
        return self.scheduler.idle and not self.scheduler.manager.tiers.busy

    def step(self) -> News:
        """One whole step of the model, if there is something to run."""
        batch = self.scheduler.schedule()
        if batch is not None:
            _process(
                self.scheduler, self._runner, batch, _launch(self.scheduler, self._runner, batch)
            )
        self.scheduler.manager.pump(_COPY_WAIT if batch is None else 0.0)
        return self.scheduler.take_outputs()


class OverlapLoop:
    """While step N runs, process step N-1 and schedule step N+1.

    A decode of step N+1 whose token is still being sampled by step N is scheduled without it: the
    runner relays the token. That a request ended by a stop is known one step late; that step's
    token is dropped.
    """

    def __init__(self, scheduler: Scheduler, runner: Runner) -> None:
        self.scheduler = scheduler
        self._runner = runner
        self._in_flight: deque[tuple[ScheduleBatch, Step | Exception]] = deque()

    @property
    def idle(self) -> bool:
        """Whether a step would do nothing."""
        return self.scheduler.idle and not self._in_flight and not self.scheduler.manager.tiers.busy

    def step(self) -> News:
        """Launch the next step, then take in the result of the one before it."""
        batch = self.scheduler.schedule()
        if batch is not None:
            self._in_flight.append((batch, _launch(self.scheduler, self._runner, batch)))
        # Without a new batch the last one in flight is taken in too: what is scheduled next may
        # need it.
        if len(self._in_flight) > 1 or (batch is None and self._in_flight):
            _process(self.scheduler, self._runner, *self._in_flight.popleft())
        self.scheduler.manager.pump(0.0 if batch is not None or self._in_flight else _COPY_WAIT)
        return self.scheduler.take_outputs()


def create_loop(scheduler: Scheduler, runner: Runner, overlap: bool) -> EventLoop:
    """The loop that a configuration asks for."""
    return OverlapLoop(scheduler, runner) if overlap else NormalLoop(scheduler, runner)


def _launch(scheduler: Scheduler, runner: Runner, batch: ScheduleBatch) -> Step | Exception:
    worker_batch = scheduler.launch(batch)
    try:
        step = runner.forward(worker_batch)
        runner.sample(step, None)
    except Exception as error:  # whatever a model raises, only this step's requests may suffer
        return error
    return step


def _process(
    scheduler: Scheduler, runner: Runner, batch: ScheduleBatch, step: Step | Exception
) -> None:
    if isinstance(step, Exception):
        scheduler.process(batch, step)
        return
    try:
        result = runner.result(step)
    except Exception as error:  # as above
        scheduler.process(batch, error)
    else:
        scheduler.process(batch, result)
