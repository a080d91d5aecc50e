"""Fairness between tenants: who was served least goes next.

Owns the counters and the turns that follow from them; the order within a tenant is the policy's.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from itertools import groupby

from phloem.scheduler.request import Request

OUTPUT_WEIGHT = 2
"""An output token counts as so many computed prompt tokens: it takes more of a step's time."""
_REMEMBERED = 1024
"""Tenants without requests whose counters are kept, where so many are above the floor."""


class FairShare:
    """Virtual token counters (Sheng et al., Fairness in Serving Large Language Models, 2024).

    Each tenant has a counter of what was computed for it: prompt tokens that were not cached, once
    for each request, and `OUTPUT_WEIGHT` for each output token. The waiting tenant with the lowest
    counter has the next turn. A tenant that comes, or comes back after a while without waiting
    requests, starts no lower than the lowest counter of those that have been waiting, or than that
    of who was let in last where nobody has: nobody saves up turns by being away.

    The counters of two tenants that wait differ by no more than L + `OUTPUT_WEIGHT` x M: L is the
    most that a prompt takes, M the most output that one tenant's running requests can yet have. So
    for as long as both wait, one is served no more than that beyond the other, besides what it was
    behind when that began, which is no more either. Whatever a heavy tenant sends, others wait only
    for their own. That is where all have one priority: between priorities there is no fairness,
    turns are within each. Who gave way before goes first, it has had its turn.

    It remembers those that wait or run, and a bounded number of others: the latest to come.

    Args:
        running: the requests that hold memory.
    """

    def __init__(self, running: Callable[[], Iterable[Request]]) -> None:
        self._running = running
        self._counters: dict[Hashable, int] = {}
        """In the order in which they last came."""
        self._floor = 0
        """No newcomer starts lower; it never falls."""
        self._last: Hashable = None
        """Who was let in last."""
        self._waiting: Counter[Hashable] = Counter()
        """New requests of each tenant that have not been let in since the last look."""

    def served(self, tenant: Hashable) -> int:
        """A tenant's counter, as of the last look at the queue or end of one of its requests."""
        return self._counters.get(tenant, self._floor)

    def turns(self, order: Iterable[Request]) -> Iterator[Request]:
        """The requests of a queue, taken in turns; say who was let in before taking the next.

        Args:
            order: by priority, then those who had been let in before, then the policy's.
        """
        begun: set[Hashable] = set()
        for request in self._running():
            self.charge_output(request)
            begun.add(request.tenant)
        order = list(order)
        waiting: Counter[Hashable] = Counter()
        for request in order:
            if request.charged:
                begun.add(request.tenant)
            else:
                waiting[request.tenant] += 1
        self._lift(waiting)
        if len(self._counters) > len(waiting) + len(begun) + 2 * _REMEMBERED:
            self._prune(begun)
        for _, group in groupby(order, lambda r: (r.priority, r.charged > 0)):
            yield from self._take_turns(list(group))

    def let_in(self, request: Request, computed: int) -> None:
        """A request gets memory, and so many of its tokens have to be computed."""
        if request.charged:
            return
        tenant = request.tenant
        # Somebody lower may wait too: less urgent, or passed over. That is no place to start at.
        self._floor = max(self._floor, self.served(tenant))
        self._last = tenant
        self._waiting[tenant] -= 1
        if self._waiting[tenant] <= 0:
            del self._waiting[tenant]
        self._charge(request, computed)
        request.charged = request.num_tokens

    def charge_output(self, request: Request) -> None:
        """Count the output that a request has had since; call it too when it loses its memory."""
        self._charge(request, OUTPUT_WEIGHT * (request.num_tokens - request.charged))
        request.charged = request.num_tokens

    def _charge(self, request: Request, tokens: int) -> None:
        if tokens:
            self._counters[request.tenant] = self.served(request.tenant) + tokens

    def _lift(self, waiting: Counter[Hashable]) -> None:
        stayed = [self.served(tenant) for tenant in waiting if tenant in self._waiting]
        self._floor = max(self._floor, min(stayed, default=self.served(self._last)))
        for tenant in waiting:
            if tenant not in self._waiting:
                self._counters[tenant] = max(self._counters.pop(tenant, 0), self._floor)
        self._waiting = waiting

    def _prune(self, begun: Collection[Hashable]) -> None:
        """Forget who is gone; at least `_REMEMBERED` go, so that it costs each that came little."""
        gone = [t for t in self._counters if t not in self._waiting and t not in begun]
        # Who is not above the floor would be lifted there anyway.
        above = [tenant for tenant in gone if self._counters[tenant] > self._floor]
        for tenant in {*gone}.difference(above[-_REMEMBERED:]):
            del self._counters[tenant]

    def _take_turns(self, requests: list[Request]) -> Iterator[Request]:
        if requests[0].charged:
            yield from requests
            return
        queues: dict[Hashable, list[Request]] = {}
        for request in reversed(requests):
            queues.setdefault(request.tenant, []).append(request)
        # Ties go to whose first request is earlier in the order.
        places = {request.tenant: -i for i, request in enumerate(reversed(requests))}
        heap = [(self.served(tenant), place, tenant) for tenant, place in places.items()]
        heap.sort(key=lambda entry: entry[:2])
        while heap:
            _, place, tenant = heap[0]
            queue = queues[tenant]
            yield queue.pop()
            if queue:
                heapq.heapreplace(heap, (self.served(tenant), place, tenant))
            else:
                heapq.heappop(heap)
