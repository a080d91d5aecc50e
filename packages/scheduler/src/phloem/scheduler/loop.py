"""The event loops: they carry batches from the scheduler to a runner and results back.

`NormalLoop` does one step after the other. `OverlapLoop` takes a step's result in while the next
step runs, so that scheduling costs no model time. Both are driven one `step()` at a time, by tests
as by servers, and give the same output. Neither sleeps or reads a clock: who drives them does. They
wait for steps, and for a moment at most for a copy between cache tiers if there is nothing else.
"""

from __future__ import annotations

import logging
from typing import Protocol

from phloem.scheduler.batch import ScheduleBatch
from phloem.scheduler.news import News
from phloem.scheduler.ports import Runner, Step, StepResult
from phloem.scheduler.scheduler import Scheduler

logger = logging.getLogger(__name__)

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
        scheduler, runner = self.scheduler, self._runner
        batch = scheduler.schedule()
        if batch is not None:
            step = _forward(scheduler, runner, batch)
            step = _sample(scheduler, runner, batch, step)
            _process(scheduler, runner, batch, step)
        scheduler.manager.pump(_COPY_WAIT if batch is None else 0.0)
        return scheduler.take_outputs()


class OverlapLoop:
    """While step N runs, process step N-1 and schedule step N+1.

    A decode of step N+1 whose token is still being sampled by step N is scheduled without it: the
    runner relays the token. That a request ended by a stop is known one step late; that step's
    token is dropped. A step with constrained requests is forwarded at once too, and sampled when
    the tokens of the step before are known, which decide what may follow.
    """

    def __init__(self, scheduler: Scheduler, runner: Runner) -> None:
        self.scheduler = scheduler
        self._runner = runner
        self._in_flight: tuple[ScheduleBatch, Step | Exception] | None = None

    @property
    def idle(self) -> bool:
        """Whether a step would do nothing."""
        return (
            self.scheduler.idle
            and self._in_flight is None
            and not self.scheduler.manager.tiers.busy
        )

    def step(self) -> News:
        """Launch the next step, then take in the result of the one before it."""
        scheduler, runner, before = self.scheduler, self._runner, self._in_flight
        batch = scheduler.schedule()
        step: Step | Exception = None
        if batch is not None:
            step = _forward(scheduler, runner, batch)
            if not batch.guided:
                step = _sample(scheduler, runner, batch, step)
        # Without a new batch the last one in flight is taken in too: what is scheduled next may
        # need it.
        if before is not None:
            _process(scheduler, runner, *before)
        if batch is not None and batch.guided:
            step = _sample(scheduler, runner, batch, step)
        self._in_flight = None if batch is None else (batch, step)
        scheduler.manager.pump(_COPY_WAIT if batch is None else 0.0)
        return scheduler.take_outputs()


def create_loop(scheduler: Scheduler, runner: Runner, overlap: bool) -> EventLoop:
    """The loop that a configuration asks for."""
    return OverlapLoop(scheduler, runner) if overlap else NormalLoop(scheduler, runner)


def _forward(scheduler: Scheduler, runner: Runner, batch: ScheduleBatch) -> Step | Exception:
    worker_batch = scheduler.launch(batch)
    try:
        return runner.forward(worker_batch)
    except Exception as error:  # whatever a model raises, only this step's requests may suffer
        return error


def _sample(
    scheduler: Scheduler, runner: Runner, batch: ScheduleBatch, step: Step | Exception
) -> Step | Exception:
    if isinstance(step, Exception):
        return step
    masks = scheduler.masks(batch) if batch.guided else None
    try:
        runner.sample(step, masks)
    except Exception as error:  # as above
        return error
    return step


def _process(
    scheduler: Scheduler, runner: Runner, batch: ScheduleBatch, step: Step | Exception
) -> None:
    result: StepResult | Exception
    try:
        result = step if isinstance(step, Exception) else runner.result(step)
    except Exception as error:  # as above
        result = error
    if isinstance(result, Exception):
        logger.error("a step of the model failed, and its requests with it", exc_info=result)
    scheduler.process(batch, result)
