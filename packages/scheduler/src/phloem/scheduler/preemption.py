"""Preemption: running requests give way to more urgent ones that wait.

Owns who gives way and when; taking the memory back is the scheduler's doing, and a request that
gave way goes on later from what is cached of it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import numpy as np

from phloem.scheduler.queue import WaitingQueue
from phloem.scheduler.request import Request
from phloem.scheduler.table import RUNNING, RequestTable, Rows


class Preemption:
    """Takes places and memory from running requests whose priority is lower by more than
    `threshold`.

    The least urgent gives way first, and of equals the one that was let in last. Equal priorities
    never take from each other, so nobody is thrown out by one who was thrown out for it. Nobody
    gives way unless that suffices, while its prompt is being computed, or while a step in flight
    uses its slots.

    Args:
        table: of the requests that hold memory.
        threshold: 0 or more.
        growth: tokens that requests in some rows are expected to take yet, which come free too.
        take_back: takes a request's memory; it waits again then.

    Attributes:
        must_drain: somebody would have given way but for a step in flight: let those be processed
            before anybody decodes again.
    """

    def __init__(
        self,
        table: RequestTable,
        threshold: int,
        growth: Callable[[Rows], float],
        take_back: Callable[[Request], None],
    ) -> None:
        self.must_drain = False
        self._table = table
        self._threshold = threshold
        self._growth = growth
        self._take_back = take_back
        self._most_urgent = (-1, 0)
        """The version of the queue, and the highest priority in it."""

    def possible(self, waiting: WaitingQueue) -> bool:
        """Whether anybody waits who may take from anybody; cheap, for every step."""
        held = self._table.held
        if not waiting or not len(held):
            return False
        version, highest = self._most_urgent
        if version != waiting.version:
            highest = max(request.priority for request in waiting)
            self._most_urgent = (waiting.version, highest)
        return highest - int(self._table.priority[held].min()) > self._threshold

    def make_way(
        self, request: Request, places: int, tokens: float, spared: Collection[Request]
    ) -> bool:
        """Let as many give way as it takes for `request`; False if that is not possible, or not
        yet (`must_drain`).

        Args:
            request: who waits.
            places: of running requests that it lacks.
            tokens: memory that it lacks.
            spared: who must not give way, because this step computes something for them.
        """
        if places <= 0 and tokens <= 0:
            return False
        victims = []
        for victim in self._victims(request, spared):
            victims.append(victim)
            places -= 1
            tokens -= self._gain(victim)
            if places <= 0 and tokens <= 0:
                break
        else:
            return False
        if any(victim.in_flight for victim in victims):
            self.must_drain = True
            return False
        for victim in victims:
            victim.preemptions += 1
            self._take_back(victim)
        return True

    def _victims(self, request: Request, spared: Collection[Request]) -> list[Request]:
        table, held = self._table, self._table.held
        lower = request.priority - table.priority[held] > self._threshold
        rows = held[lower & (table.status[held] == RUNNING)]
        latest_first = reversed(table.requests(rows))
        return sorted((r for r in latest_first if r not in spared), key=lambda r: r.priority)

    def _gain(self, victim: Request) -> float:
        """Tokens that come free or become evictable; fewer do, where its prefix is shared."""
        lease = victim.lease
        assert lease is not None, f"{victim.rid} is running without a lease"
        return lease.allocated + self._growth(np.array([lease.row]))
