"""The order in which waiting requests are looked at: a policy's, kept for as long as it holds."""

from __future__ import annotations

from collections.abc import Iterable

from phloem.mem_pool import CacheManager
from phloem.scheduler.fairness import FairShare
from phloem.scheduler.policies import SchedulePolicy
from phloem.scheduler.queue import WaitingQueue
from phloem.scheduler.request import Request


class QueueOutlook:
    """What policies ask of a queue and a cache; implements `Outlook`.

    A request is looked up in the cache once for each version of its contents.
    """

    def __init__(self, waiting: WaitingQueue, manager: CacheManager) -> None:
        self._waiting = waiting
        self._manager = manager

    def cached(self, request: Request) -> int:
        """Tokens that are cached."""
        version, length = request.peeked
        if version != self._manager.version:
            length = self._manager.peek(
                request.tokens, request.namespace, keep_from=request.keep_from
            )
            request.peeked = (self._manager.version, length)
        return length

    def waited(self, request: Request) -> int:
        """Passes since it came."""
        return self._waiting.passes - request.came_at_pass


class QueueOrder:
    """Puts a queue in order: requests that had been let in before first, then by the policy; and
    with `by_priority` all that within each priority, the highest first; and with `fair` tenants
    take turns in it.

    Nothing is done while neither the queue nor what is cached changes: then all waits grow alike.
    """

    def __init__(
        self,
        waiting: WaitingQueue,
        manager: CacheManager,
        policy: SchedulePolicy,
        by_priority: bool = False,
        fair: FairShare | None = None,
    ) -> None:
        self.outlook = QueueOutlook(waiting, manager)
        self._waiting = waiting
        self._manager = manager
        self._policy = policy
        self._by_priority = by_priority
        self._fair = fair
        self._order: list[Request] = []
        self._order_of = (-1, -1)
        """The versions of queue and cache that the order is of."""

    def current(self) -> Iterable[Request]:
        """All that wait, first to be let in first. Take them one by one: where tenants are served
        fairly, whose turn it is depends on who was let in.
        """
        order = self._by_policy()
        return order if self._fair is None else self._fair.turns(order)

    def _by_policy(self) -> list[Request]:
        waiting = self._waiting
        versions = (waiting.version, self._manager.version)
        if versions != self._order_of:
            # Whatever the policy: who was let in before has waited, and has output.
            new = self._policy.order(waiting.new(), self.outlook)
            self._order = [*waiting.retracted(), *new]
            if self._by_priority:
                self._order.sort(key=lambda request: -request.priority)
            self._order_of = versions
        return self._order
