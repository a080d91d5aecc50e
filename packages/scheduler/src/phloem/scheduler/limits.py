"""How many may wait: the queue's limits, and when who is refused should come again.

It refuses new requests only. One that was let in before and lost its memory waits again whatever
the limits are, and takes nobody's place in them.
"""

from __future__ import annotations

from collections import deque

from phloem.scheduler.errors import QueueFullError
from phloem.scheduler.queue import WaitingQueue

LONGEST_RETRY = 60.0
"""Seconds. A server that is overloaded for longer may still have room by then."""
SHORTEST_RETRY = 1.0
_WINDOW = 30.0
"""Seconds over which the queue is watched."""
_SAMPLE = 1.0
"""Seconds between two looks at it."""


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

    def check(self, queue: WaitingQueue, tokens: int, now: float) -> None:
        """Refuse a new request of `tokens` tokens that there is no room for.

        Raises:
            QueueFullError: there is none.
        """
        self._watch(queue, now)
        waiting = queue.num_new
        if not waiting:
            return
        if self._max_requests is not None and waiting >= self._max_requests:
            what = f"{waiting} requests wait, and at most {self._max_requests} may"
        elif self._max_tokens is not None and queue.new_tokens + tokens > self._max_tokens:
            what = (
                f"requests of {queue.new_tokens} tokens wait, this one has {tokens}, and at most "
                f"{self._max_tokens} may wait"
            )
        else:
            return
        raise QueueFullError(what, self.retry_after(queue, now))

    def retry_after(self, queue: WaitingQueue, now: float) -> float:
        """Seconds after which those who wait now will have been let in, as far as can be told."""
        if not self._seen:
            return SHORTEST_RETRY
        began, before = self._seen[0]
        left = queue.tokens_left - before
        # As long again as nothing has moved, where nothing has.
        seconds = queue.new_tokens * (now - began) / left if left else now - began
        return min(max(seconds, SHORTEST_RETRY), LONGEST_RETRY)

    def _watch(self, queue: WaitingQueue, now: float) -> None:
        seen = self._seen
        if not queue.num_new:
            # What an empty queue lets through says nothing of what a full one would.
            seen.clear()
        if not seen or now - seen[-1][0] >= _SAMPLE:
            seen.append((now, queue.tokens_left))
        while now - seen[0][0] > _WINDOW and len(seen) > 1:
            seen.popleft()
