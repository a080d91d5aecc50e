"""Fairness between tenants: who was served least goes next.

Owns the counters and the turns that follow from them; the order within a tenant is the policy's.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Iterable, Iterator
from itertools import groupby

from phloem.scheduler.request import Request

OUTPUT_WEIGHT = 2
"""An output token counts as so many computed prompt tokens: it takes more of a step's time."""
_PRUNE_ABOVE = 1024


class FairShare:
    """Virtual token counters (Sheng et al., Fairness in Serving Large Language Models, 2024).

    Each tenant has a counter of what was computed for it: prompt tokens that were not cached, once
    for each request, and `OUTPUT_WEIGHT` for each output token. The waiting tenant with the lowest
    counter has the next turn. A tenant that comes back after a while without requests starts at
    the lowest counter of those that wait: nobody saves up turns by being away.

    Of two tenants that always have somebody waiting, one is never served more than L +
    `OUTPUT_WEIGHT` x M beyond the other, from when both began: L is the most that a prompt takes,
    M the most output that one tenant's running requests can yet have. So whatever a heavy tenant
    sends, others wait only for their own. Between priorities there is no fairness: turns are within
    each. Who gave way before goes first, it has had its turn.

    Args:
        running: the requests that hold memory.
    """

    def __init__(self, running: Callable[[], Iterable[Request]]) -> None:
        self._running = running
        self._counters: dict[Hashable, int] = {}
        self._lowest = 0
        """The lowest counter of those that waited at the last look."""
        self._waited: dict[Hashable, None] = {}
        """Who that was."""

    def served(self, tenant: Hashable) -> int:
        """A tenant's counter, as of the last look at the queue or end of one of its requests."""
        return self._counters.get(tenant, self._lowest)

    def turns(self, order: Iterable[Request]) -> Iterator[Request]:
        """The requests of a queue, taken in turns; say who was let in before taking the next.

        Args:
            order: by priority, then those who had been let in before, then the policy's.
        """
        for request in self._running():
            self.charge_output(request)
        order = list(order)
        self._lift(dict.fromkeys(r.tenant for r in order if not r.charged))
        for _, group in groupby(order, lambda r: (r.priority, r.charged > 0)):
            yield from self._take_turns(list(group))

    def let_in(self, request: Request, computed: int) -> None:
        """A request gets memory, and so many of its tokens have to be computed."""
        if not request.charged:
            self._charge(request, computed)
            request.charged = request.num_tokens

    def charge_output(self, request: Request) -> None:
        """Count the output that a request has had since; call it too when it loses its memory."""
        self._charge(request, OUTPUT_WEIGHT * (request.num_tokens - request.charged))
        request.charged = request.num_tokens

    def _charge(self, request: Request, tokens: int) -> None:
        if tokens:
            self._counters[request.tenant] = self.served(request.tenant) + tokens

    def _lift(self, waiting: dict[Hashable, None]) -> None:
        stayed = [self.served(tenant) for tenant in waiting if tenant in self._waited]
        self._lowest = max(self._lowest, min(stayed, default=0))
        for tenant in waiting:
            self._counters[tenant] = max(self.served(tenant), self._lowest)
        self._waited = waiting
        if len(self._counters) > max(_PRUNE_ABOVE, 2 * len(waiting)):
            # Who is not above the lowest would be lifted there anyway.
            above = {t: n for t, n in self._counters.items() if n > self._lowest or t in waiting}
            self._counters = above

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
