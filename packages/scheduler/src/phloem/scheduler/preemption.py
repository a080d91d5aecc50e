"""Preemption: running requests give way to more urgent ones that wait.

Owns who gives way and when; taking the memory back is the scheduler's doing, and a request that
gave way goes on later from what is cached of it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import numpy as np

from phloem.mem_pool import CacheManager, Lease, Slots
from phloem.scheduler.queue import WaitingQueue
from phloem.scheduler.request import Request
from phloem.scheduler.table import RUNNING, RequestTable, Rows


class Preemption:
    """Takes places and memory from running requests whose priority is lower by more than
    `threshold`.

    The least urgent gives way first, and of equals the one that was let in last. Equal priorities
    never take from each other, so nobody is thrown out by one who was thrown out for it. Nobody
    gives way while its prompt is being computed, while a step in flight uses its slots, or unless
    all who do suffice together. A prefix counts only once everybody who holds it gives way; what is
    being copied to a tier below counts too, though it comes free only after the copy.

    Args:
        manager: of their memory.
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
        manager: CacheManager,
        table: RequestTable,
        threshold: int,
        growth: Callable[[Rows], float],
        take_back: Callable[[Request], None],
    ) -> None:
        self.must_drain = False
        self._manager = manager
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
        self,
        request: Request,
        places: int,
        cached: int,
        required: int,
        spared: Collection[Request],
    ) -> bool:
        """Let as many give way as it takes for `request`; False if that is not possible, or not
        yet (`must_drain`).

        Args:
            request: who waits.
            places: of running requests that it lacks.
            cached: tokens of it that are cached.
            required: tokens that it needs, these among them, beyond those reserved for others.
            spared: who must not give way, because this step computes something for them.
        """
        victims = self._enough(request, places, cached, required, self._victims(request, spared))
        if any(victim.in_flight for victim in victims):
            self.must_drain = True
            return False
        for victim in victims:
            victim.preemptions += 1
            self._take_back(victim)
        return bool(victims)

    def _victims(self, request: Request, spared: Collection[Request]) -> list[Request]:
        table, held = self._table, self._table.held
        lower = request.priority - table.priority[held] > self._threshold
        rows = held[lower & (table.status[held] == RUNNING)]
        latest_first = reversed(table.requests(rows))
        return sorted((r for r in latest_first if r not in spared), key=lambda r: r.priority)

    def _enough(
        self, request: Request, places: int, cached: int, required: int, victims: list[Request]
    ) -> list[Request]:
        """As many of the first victims as suffice; nobody if all do not, or nothing is lacking."""
        if not victims:
            return []
        available, staying = self._manager.available, self._table.held
        holders = _Holders(self._manager)
        # It holds these too once it is let in, whoever gives way; they are not evictable now.
        shared = self._held_prefix(request, cached)
        holders.hold(shared)
        required -= len(shared)
        if places <= 0 and required <= available - self._growth(staying):
            return []
        for count, victim in enumerate(victims, 1):
            lease = victim.lease
            assert lease is not None, f"{victim.rid} is running without a lease"
            available += holders.leave(lease)
            staying = staying[staying != lease.row]
            if count >= places and required <= available - self._growth(staying):
                return victims[:count]
        return []

    def _held_prefix(self, request: Request, cached: int) -> Slots:
        """The slots of what is cached of a request that somebody who runs holds."""
        manager, table = self._manager, self._table
        tokens, longest, holder = request.tokens, 0, 0
        for other in table.requests(table.held):
            lease = other.lease
            if lease is None or lease.namespace != request.namespace:
                continue
            length = min(lease.protected, cached)
            if length > longest:
                same = table.token_ids[lease.row, :length] == tokens[:length]
                length = length if same.all() else int(same.argmin())
                if length > longest:
                    longest, holder = length, lease.row
        return manager.rows.table[holder, : longest - longest % manager.page_size]


class _Holders:
    """How many hold each slot of the tree, to tell what comes free when some of them leave."""

    def __init__(self, manager: CacheManager) -> None:
        self._table = manager.rows.table
        self._page_size = manager.page_size
        self._count = np.zeros(manager.slots.num_slots, np.int32)
        for lease in manager.open_leases:
            self.hold(self._prefix(lease))

    def hold(self, slots: Slots) -> None:
        """One more holds these slots, which differ from each other."""
        self._count[slots] += 1

    def leave(self, lease: Lease) -> int:
        """Tokens that come free or become evictable when a lease, too, is closed."""
        prefix = self._prefix(lease)
        self._count[prefix] -= 1
        pages = -(-lease.allocated // self._page_size)
        own = pages * self._page_size - len(prefix)
        return own + len(prefix) - int(np.count_nonzero(self._count[prefix]))

    def _prefix(self, lease: Lease) -> Slots:
        return self._table[lease.row, : lease.protected]
