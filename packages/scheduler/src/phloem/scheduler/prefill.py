"""Which prompts, or chunks of them, are computed next: admission against the memory budget."""

from __future__ import annotations

from collections.abc import Callable

from phloem.mem_pool import CacheManager, Lease
from phloem.scheduler.batch import BatchRow
from phloem.scheduler.budget import NewTokenRatio, PrefillBudget, tokens_needed
from phloem.scheduler.config import SchedulerConfig
from phloem.scheduler.policies import SchedulePolicy
from phloem.scheduler.queue import WaitingQueue
from phloem.scheduler.request import Request, Status


class PrefillPlanner:
    """Plans the prefill part of a step: goes on with the chunked request, then admits from the
    queue.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        manager: CacheManager,
        policy: SchedulePolicy,
        ratio: NewTokenRatio,
        clock: Callable[[], float],
    ) -> None:
        self._config = config
        self._manager = manager
        self._policy = policy
        self._ratio = ratio
        self._clock = clock

    def plan(
        self, waiting: WaitingQueue, active: dict[str, Request], decode_rows: int
    ) -> list[BatchRow]:
        """The prefill rows of this step; admitted requests move from `waiting` to `active`.

        Args:
            decode_rows: running requests that will decode in the same step; they use up the budget
            too.
        """
        # Never less than a page, so that decodes slow a prefill down but cannot stop it.
        page = self._manager.page_size
        chunk = self._config.chunked_prefill_size
        budget = PrefillBudget(
            max(self._config.max_prefill_tokens - decode_rows, page),
            None if chunk is None else max(chunk - decode_rows, page),
            page,
        )
        rows: list[BatchRow] = []
        for request in active.values():
            # At most one: admission stops at the first prompt that has to be cut.
            if request.status is Status.PREFILL:
                rows.extend(self._next_chunk(request, budget))
                if request.status is Status.PREFILL:
                    return rows
        self._admit(waiting, active, budget, rows)
        return rows

    def _growth(self, request: Request) -> float:
        """Tokens that a request let in is expected to take yet; its prompt has its slots already:
        nobody is let in while a prompt is being computed in chunks.
        """
        new_tokens = min(max(request.new_tokens_left, 0), self._config.clip_max_new_tokens)
        # Nobody who ignores the end of text stops early.
        ratio = 1.0 if request.params.ignore_eos else self._ratio.value
        return new_tokens * ratio

    def _admit(
        self,
        waiting: WaitingQueue,
        active: dict[str, Request],
        budget: PrefillBudget,
        rows: list[BatchRow],
    ) -> None:
        if not waiting or len(active) >= self._config.max_running_requests:
            return
        reserved = sum(self._growth(request) for request in active.values())
        for request in self._in_order(waiting):
            if len(active) >= self._config.max_running_requests:
                break
            row = self._try_admit(request, budget, reserved)
            if row is None:
                # Nobody overtakes the one that does not fit: a long prompt would never get in.
                break
            rows.append(row)
            waiting.remove(request.rid)
            active[request.rid] = request
            if request.status is Status.PREFILL:
                break
            reserved += self._growth(request)
        for request in waiting:
            request.passes_waited += 1

    def _in_order(self, waiting: WaitingQueue) -> list[Request]:
        """Retracted requests first, whatever the policy: they have waited, and have output."""
        back = [request for request in waiting if request.retractions]
        new = [request for request in waiting if not request.retractions]
        return [*back, *self._policy.order(new, self._cached_length)]

    def _try_admit(
        self, request: Request, budget: PrefillBudget, reserved: float
    ) -> BatchRow | None:
        lease = self._manager.open(request.tokens, request.namespace, keep_from=request.keep_from)
        if lease is None:
            return None
        # Counted while the lease locks its prefix, which is no longer evictable then.
        new_tokens = min(request.new_tokens_left, self._config.clip_max_new_tokens)
        extend = request.num_tokens - lease.protected
        needed = tokens_needed(extend, new_tokens, self._manager.page_size)
        taken = budget.take(lease.protected, request.num_tokens)
        fits = needed <= self._manager.available - reserved and taken > 0
        if not fits or not self._manager.extend(lease, taken):
            self._manager.close(lease, None)
            return None
        self._mark_admitted(request, lease)
        return self._row(request, lease, taken, budget)

    def _mark_admitted(self, request: Request, lease: Lease) -> None:
        request.lease = lease
        request.scheduled = lease.protected
        request.prefill_end = request.num_tokens
        request.passes_waited = 0
        if request.cached_tokens is None:
            # Only the first time: what a retracted request finds again is its own work, not a hit.
            request.cached_tokens = lease.protected
            request.admitted = self._clock()

    def _next_chunk(self, request: Request, budget: PrefillBudget) -> list[BatchRow]:
        lease = request.lease
        assert lease is not None, f"{request.rid} is being prefilled without a lease"
        taken = budget.take(request.scheduled, request.prefill_end)
        if taken == 0 or not self._manager.extend(lease, taken):
            return []
        return [self._row(request, lease, taken, budget)]

    def _row(self, request: Request, lease: Lease, taken: int, budget: PrefillBudget) -> BatchRow:
        budget.spend(taken)
        start, end = request.scheduled, request.scheduled + taken
        complete = end == request.prefill_end
        request.status = Status.RUNNING if complete else Status.PREFILL
        request.scheduled = end
        return BatchRow(
            request, lease, start, end, samples=complete and request.new_tokens_left > 0
        )

    def _cached_length(self, request: Request) -> int:
        return self._manager.peek(request.tokens, request.namespace)
