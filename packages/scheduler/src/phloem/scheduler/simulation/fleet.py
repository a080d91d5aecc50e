"""Replays a trace: replicas behind a router, in the order of time.

Owns the order of events and who is told of what. A router decides at the moment of an arrival, by
the requests that have not ended then; routing itself takes no time.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from math import inf

import numpy as np
import numpy.typing as npt

from phloem.scheduler.simulation.figures import Outcome, figures_of
from phloem.scheduler.simulation.records import Records
from phloem.scheduler.simulation.replica import Replica
from phloem.scheduler.simulation.routers import create_router
from phloem.scheduler.simulation.setup import Setup
from phloem.scheduler.simulation.trace import Trace, prompt_ids

_END, _ARRIVAL, _STEP = range(3)
"""Kinds of events; of those at one time, ends are first and steps last."""


def simulate(
    trace: Trace, setup: Setup, *, warm: bool = False, every_step: bool = False
) -> Outcome:
    """Replay a trace under a configuration.

    Args:
        warm: replay it twice, and report the second time, with the caches as the first left them.
        every_step: take no steps together; slower, with the same outcome.

    Raises:
        ValueError: the configuration cannot be.
    """
    fleet = Fleet(setup, trace.longest, every_step)
    if warm:
        fleet.run(trace)
    return Outcome(setup, figures_of(fleet.run(trace), setup))


class Fleet:
    """Replicas and their router, with what is in the caches from earlier runs.

    Args:
        setup: the configuration.
        context_len: tokens of the longest request.
        every_step: take every step singly, to check that nothing depends on that.
    """

    def __init__(self, setup: Setup, context_len: int, every_step: bool = False) -> None:
        self._replicas = [Replica(setup, context_len, every_step) for _ in range(setup.replicas)]
        self._router = create_router(
            setup.router, setup.pool_tokens, setup.page_size, setup.replicas
        )
        self._now = 0.0

    @property
    def replicas(self) -> Iterable[Replica]:
        """The replicas, by number."""
        return self._replicas

    def run(self, trace: Trace) -> Records:
        """Replay a trace from the time at which the last one ended; returns what happened."""
        replay = _Replay(trace, self._replicas, self._now)
        while replay.events:
            time, kind, which, version = heapq.heappop(replay.events)
            if kind == _END:
                replay.loads[which] -= 1
                self._now = max(self._now, time)
            elif kind == _ARRIVAL:
                ids = prompt_ids(trace.requests[which])
                replay.arrive(which, self._router.choose(ids, replay.loads), ids, time)
            elif version == replay.versions[which]:
                replay.step(which)
        return replay.records


class _Replay:
    """One run of a trace."""

    def __init__(self, trace: Trace, replicas: list[Replica], start: float) -> None:
        self.records = Records(trace)
        self.loads = dict.fromkeys(range(len(replicas)), 0)
        self.versions = [0] * len(replicas)
        """Of each replica's next step among the events; older ones are void."""
        self.events: list[tuple[float, int, int, int]] = []
        self._trace = trace
        self._replicas = replicas
        self._followers: dict[int, list[int]] = {}
        self._start = start
        for index, request in enumerate(trace.requests):
            if request.after is None:
                self._push(start + request.arrival, _ARRIVAL, index)
            else:
                self._followers.setdefault(request.after, []).append(index)

    def arrive(self, index: int, number: int, ids: npt.NDArray[np.int32], now: float) -> None:
        """Give a request to a replica."""
        self.records.arrived[index] = now
        replica = self._replicas[number]
        request = self._trace.requests[index]
        if replica.submit(index, request, ids, now, self.records):
            self.loads[number] += 1
            self._expect(number)
        else:
            self.records.refused[index] = True
            self._follow(index, now)

    def step(self, number: int) -> None:
        """Let a replica take its next step."""
        ended, at = self._replicas[number].step(self.records)
        for index in ended:
            self._push(at, _END, number)
            self._follow(index, at)
        self._expect(number)

    def _expect(self, number: int) -> None:
        """Note when the replica's next step starts."""
        time = self._replicas[number].next_event(self.records)
        self.versions[number] += 1
        if time < inf:
            self._push(time, _STEP, number, self.versions[number])

    def _follow(self, index: int, now: float) -> None:
        for follower in self._followers.get(index, ()):
            request = self._trace.requests[follower]
            self._push(max(now + request.delay, self._start + request.arrival), _ARRIVAL, follower)

    def _push(self, time: float, kind: int, which: int, version: int = 0) -> None:
        heapq.heappush(self.events, (time, kind, which, version))
