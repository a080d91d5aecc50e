"""The order of arrival while many wait: looking all of them up in the cache would cost too much."""

from __future__ import annotations

from collections.abc import Sequence

from phloem.scheduler.policies.base import Outlook, SchedulePolicy
from phloem.scheduler.request import Request


class Limited:
    """Another policy for up to `limit` waiting requests; for more, in order of arrival.

    It also bounds who can ever be before a request: those that came earlier, and while the other
    policy is asked `limit` others at most.
    """

    def __init__(self, inner: SchedulePolicy, limit: int) -> None:
        self._inner = inner
        self._limit = limit

    def order(self, waiting: Sequence[Request], outlook: Outlook) -> Sequence[Request]:
        """By the other policy, or as they came."""
        return waiting if len(waiting) > self._limit else self._inner.order(waiting, outlook)
