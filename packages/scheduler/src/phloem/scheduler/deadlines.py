"""When requests have waited, or run, for too long.

It keeps the times and says who is overdue; ending them is the scheduler's work.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import count

from phloem.scheduler.request import FinishReason, Request, Status

QUEUE, TOTAL = "queue", "total"
_SMALL = 64


class Deadlines:
    """The time limits of requests that have not ended: one on the wait until a request is first let
    in, one on the whole of it.

    Limits of requests that have ended, or been let in, stay here until they are due or there are
    too many of them, so that neither end costs a search.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, str, float, Request]] = []
        self._numbers = count()
        self._tidy_at = _SMALL

    def add(self, request: Request, kind: str, seconds: float) -> None:
        """Limit a request to some seconds from its arrival."""
        if len(self._heap) >= self._tidy_at:
            self._heap = [entry for entry in self._heap if _counts(entry[-1], entry[2])]
            heapq.heapify(self._heap)
            self._tidy_at = max(_SMALL, 2 * len(self._heap))
        due = request.arrived + seconds
        heapq.heappush(self._heap, (due, next(self._numbers), kind, seconds, request))

    @property
    def next(self) -> float | None:
        """When the next one is due; None where nothing is limited."""
        heap = self._heap
        while heap and not _counts(heap[0][-1], heap[0][2]):
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def overdue(self, now: float, retry_after: float) -> Iterator[tuple[Request, FinishReason]]:
        """Who is over a limit, and how they end, in order; the caller ends each at once.

        Args:
            retry_after: seconds until there may be room for those who waited in vain.
        """
        while (due := self.next) is not None and due <= now:
            _, _, kind, seconds, request = heapq.heappop(self._heap)
            yield request, _reason(kind, seconds, retry_after)


def _counts(request: Request, kind: str) -> bool:
    """Whether a limit still holds: who was let in once waits no longer for that."""
    if request.status is Status.FINISHED:
        return False
    return kind == TOTAL or request.admitted is None


def _reason(kind: str, seconds: float, retry_after: float) -> FinishReason:
    if kind == TOTAL:
        # The limit is on this one request: trying it again at once would not help.
        message = f"the request did not end within its {seconds:g} s: allow more, or ask for less"
        return FinishReason("abort", message=message, status_code=408)
    message = (
        f"the request waited for {seconds:g} s and was not let in: the server is overloaded, try "
        "again later"
    )
    return FinishReason("abort", message=message, status_code=503, retry_after=retry_after)
