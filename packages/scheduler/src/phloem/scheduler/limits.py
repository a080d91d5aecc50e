"""How many may wait: the queue's limits, who gives way there, and when to come again.

It refuses new requests only. One that was let in before and lost its memory waits again whatever
the limits are, and takes nobody's place in them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterator
from dataclasses import dataclass

from phloem.scheduler.errors import QueueFullError
from phloem.scheduler.queue import WaitingQueue
from phloem.scheduler.request import Request

LONGEST_RETRY = 60.0
"""Seconds. A server that is overloaded for longer may still have room by then."""
SHORTEST_RETRY = 1.0
_WINDOW = 30.0
"""Seconds over which the queue is watched."""
_SAMPLE = 1.0
"""Seconds between two looks at it."""


@dataclass(frozen=True, slots=True)
class Newcomer:
    """What counts of a request that wants to wait."""

    tokens: int
    priority: int
    tenant: Hashable
    fair: bool
    """Whether tenants have equal rights to the queue."""


class QueueLimit:
    """Bounds the requests that wait, and the tokens of their prompts.

    Who is refused is told when those who wait now will have been let in, if the queue moves on as
    it did in the last half minute, or since it was last seen empty. An empty queue takes any
    request: otherwise one with more tokens than the limit could never come.
    """

    def __init__(self, max_requests: int | None, max_tokens: int | None) -> None:
        self._max_requests = max_requests
        self._max_tokens = max_tokens
        self._seen: deque[tuple[float, int]] = deque()
        """At some times, the tokens that had left the queue altogether."""

    def make_room(self, queue: WaitingQueue, newcomer: Newcomer, now: float) -> list[Request]:
        """Who has to leave so that a new request may wait, mostly nobody; see `_weaker`.

        Raises:
            QueueFullError: there is no room, and too few give way.
        """
        self._watch(queue, now)
        requests, tokens = queue.num_new, queue.new_tokens + newcomer.tokens
        over = self._over(requests + 1, tokens)
        if over is None or not requests:
            return []
        leaving: list[Request] = []
        for request in _weaker(queue, newcomer):
            leaving.append(request)
            requests -= 1
            tokens -= request.num_prompt
            if not requests or self._over(requests + 1, tokens) is None:
                return leaving
        raise QueueFullError(over, self.retry_after(queue, now), _over_share(queue, newcomer))

    def retry_after(self, queue: WaitingQueue, now: float) -> float:
        """Seconds after which those who wait now will have been let in, as far as can be told."""
        if not self._seen:
            return SHORTEST_RETRY
        began, before = self._seen[0]
        left = queue.tokens_left - before
        # As long again as nothing has moved, where nothing has.
        seconds = queue.new_tokens * (now - began) / left if left else now - began
        return min(max(seconds, SHORTEST_RETRY), LONGEST_RETRY)

    def _over(self, requests: int, tokens: int) -> str | None:
        """Which limit so many would be over, in words."""
        if self._max_requests is not None and requests > self._max_requests:
            return f"{requests - 1} requests wait, and at most {self._max_requests} may"
        if self._max_tokens is not None and tokens > self._max_tokens:
            return (
                f"with this one, requests of {tokens} tokens would wait, and at most "
                f"{self._max_tokens} may"
            )
        return None

    def _watch(self, queue: WaitingQueue, now: float) -> None:
        seen = self._seen
        if not queue.num_new:
            # What an empty queue lets through says nothing of what a full one would.
            seen.clear()
        if not seen or now - seen[-1][0] >= _SAMPLE:
            seen.append((now, queue.tokens_left))
        while now - seen[0][0] > _WINDOW and len(seen) > 1:
            seen.popleft()


def _weaker(queue: WaitingQueue, newcomer: Newcomer) -> Iterator[Request]:
    """Who gives way to a newcomer in a full queue, the first to go first.

    Those of strictly lower priority, the least urgent first and of these the last that came. Then,
    where tenants have equal rights, of those of its own priority the last that came of the tenant
    with the most there, as long as that has more left than the newcomer's tenant will have. So
    nobody's requests push each other out in turns.
    """
    new = queue.new()
    # Backwards, since sorting keeps the order of equals.
    lower = [request for request in reversed(new) if request.priority < newcomer.priority]
    yield from sorted(lower, key=lambda request: request.priority)
    if not newcomer.fair:
        return
    tenants: dict[Hashable, list[Request]] = {newcomer.tenant: []}
    for request in new:
        if request.priority == newcomer.priority:
            tenants.setdefault(request.tenant, []).append(request)
    own = len(tenants[newcomer.tenant]) + 1
    while len(heaviest := max(tenants.values(), key=len)) > own:
        yield heaviest.pop()


def _over_share(queue: WaitingQueue, newcomer: Newcomer) -> bool:
    """Whether the newcomer's own tenant has more than its share of the places that are taken."""
    tenants = [request.tenant for request in queue.new()]
    own = tenants.count(newcomer.tenant)
    return newcomer.fair and own < len(tenants) < own * len({*tenants, newcomer.tenant})
