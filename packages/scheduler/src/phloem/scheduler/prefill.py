"""Which prompts, or chunks of them, are computed next: admission against the memory budget."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from phloem.mem_pool import CacheManager, Lease, cache_miss
from phloem.scheduler.batch import BatchRow
from phloem.scheduler.budget import NewTokenRatio, PrefillBudget, tokens_needed
from phloem.scheduler.config import SchedulerConfig
from phloem.scheduler.fairness import FairShare
from phloem.scheduler.in_batch import InBatchSharing
from phloem.scheduler.ordering import QueueOrder
from phloem.scheduler.pacing import PaceKeeper
from phloem.scheduler.preemption import Preemption
from phloem.scheduler.queue import WaitingQueue
from phloem.scheduler.request import Request, Status
from phloem.scheduler.table import RUNNING, RequestTable, Rows


@dataclass(frozen=True, slots=True)
class _Blocked:
    """Why the first in line did not get in, so that it is not tried in vain in every pass."""

    queue_version: int
    published: int
    epoch: int
    """The table's: who holds memory. That matters where somebody may give way."""
    required: int
    """Tokens that it needs beyond those reserved for others. It can only need fewer once somebody
    publishes more of its prefix; what is evicted of that makes it need as many more.
    """


_MOST_HELD_BACK = 128
"""Requests that are passed over in one pass for a prefix that is being computed; looking at them
takes time, and they would wait all the same.
"""


class PrefillPlanner:
    """Plans the prefill part of a step: goes on with the chunked request, then admits from the
    queue.

    The queue is put in order when it, or what is cached, has changed; but not while its first waits
    for memory that is not there: then it stays the first.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        manager: CacheManager,
        table: RequestTable,
        order: QueueOrder,
        sharing: InBatchSharing | None,
        fair: FairShare | None,
        pace: PaceKeeper | None,
        ratio: NewTokenRatio,
        clock: Callable[[], float],
        take_back: Callable[[Request], None],
    ) -> None:
        self._config = config
        self._manager = manager
        self._table = table
        self._order = order
        self._sharing = sharing
        self._fair = fair
        self._pace = pace
        self._ratio = ratio
        self._clock = clock
        self._chunked: Request | None = None
        """The request that was cut last; at most one at a time is being computed in chunks."""
        self._blocked: _Blocked | None = None
        threshold = config.priority_preemption_threshold
        self._preemption = (
            None
            if threshold is None
            else Preemption(manager, table, threshold, self._growth, take_back)
        )

    @property
    def must_drain(self) -> bool:
        """Whether steps in flight hold up an admission: nobody should decode again before."""
        return self._preemption is not None and self._preemption.must_drain

    def plan(self, waiting: WaitingQueue, active: dict[str, Request]) -> list[BatchRow]:
        """The prefill rows of this step; admitted requests move from `waiting` to `active`."""
        preemption = self._preemption
        if preemption is not None:
            preemption.must_drain = False
        chunked = self._chunked
        if not waiting and (chunked is None or chunked.status is not Status.PREFILL):
            return []
        # Those that will decode in the same step use up the budget too.
        decode_rows = self._decoding() if self._config.enable_mixed_chunk else 0
        # Never less than a page, so that decodes slow a prefill down but cannot stop it.
        page = self._manager.page_size
        chunk = self._config.chunked_prefill_size
        if chunk is not None and self._pace is not None and decode_rows:
            chunk = min(chunk, self._pace.chunk + decode_rows)
        budget = PrefillBudget(
            max(self._config.max_prefill_tokens - decode_rows, page),
            None if chunk is None else max(chunk - decode_rows, page),
            page,
        )
        rows: list[BatchRow] = []
        if chunked is not None and chunked.status is Status.PREFILL:
            # Admission stops at the first prompt that has to be cut.
            rows.extend(self._next_chunk(chunked, budget))
            if chunked.status is Status.PREFILL:
                return rows
        if (waiting and len(active) < self._config.max_running_requests) or (
            preemption is not None and preemption.possible(waiting)
        ):
            self._admit(waiting, active, budget, rows)
        return rows

    def _decoding(self) -> int:
        """Requests whose prompts are computed."""
        table = self._table
        return int(np.count_nonzero(table.status[table.held] == RUNNING))

    def _growth(self, rows: Rows) -> float:
        """Tokens that requests let in are expected to take yet; their prompts have their slots
        already: nobody is let in while a prompt is being computed in chunks.
        """
        table = self._table
        left = table.end[rows] - table.length(rows)
        np.maximum(left, 0, out=left)
        np.minimum(left, self._config.clip_max_new_tokens, out=left)
        # Nobody who ignores the end of text stops early.
        sure = int(left[table.ignores_eos[rows]].sum())
        return sure + (int(left.sum()) - sure) * self._ratio.value

    def _admit(
        self,
        waiting: WaitingQueue,
        active: dict[str, Request],
        budget: PrefillBudget,
        rows: list[BatchRow],
    ) -> None:
        """Let in who fits, adding to `rows`."""
        reserved = self._growth(self._table.held)
        if active and self._still_blocked(waiting, reserved):
            return
        self._blocked = None
        before, held_back = len(rows), 0
        if self._sharing is not None:
            self._sharing.begin()
        preempted = False
        for request in self._order.current():
            if len(active) >= self._config.max_running_requests and self._preemption is None:
                break
            if self._sharing is not None and self._sharing.holds(request, self._order.outlook):
                held_back += 1
                if held_back == _MOST_HELD_BACK:
                    break
                continue
            row = self._try_admit(request, active, budget, reserved, waiting)
            if row is None and self._make_way(request, active, budget, rows, waiting):
                preempted = True
                reserved = self._growth(self._table.held)
                row = self._try_admit(request, active, budget, reserved, waiting)
            if row is None:
                # Nobody overtakes the one that does not fit: a long prompt would never get in.
                break
            rows.append(row)
            waiting.remove(request.rid)
            active[request.rid] = request
            if self._sharing is not None:
                self._sharing.let_in(request)
            if request.status is Status.PREFILL or preempted:
                break  # the order is of before somebody gave way
            reserved += self._growth(np.array([row.lease.row]))
        if held_back or self.must_drain or (rows and self._preemption is not None):
            # Another may be the next to try, or the same at once; or who is spared in this step
            # may give way in the next.
            self._blocked = None
        waiting.passes += len(rows) > before

    def _still_blocked(self, waiting: WaitingQueue, reserved: float) -> bool:
        """Whether the first in line is the one that did not fit and still cannot."""
        blocked = self._blocked
        return (
            blocked is not None
            and blocked.queue_version == waiting.version
            and blocked.published == self._manager.published
            and blocked.required > self._manager.available - reserved
            and (self._preemption is None or blocked.epoch == self._table.epoch)
        )

    def _make_way(
        self,
        request: Request,
        active: dict[str, Request],
        budget: PrefillBudget,
        rows: Sequence[BatchRow],
        waiting: WaitingQueue,
    ) -> bool:
        """Whether less urgent requests have just given way to one that did not get in."""
        if self._preemption is None:
            return False
        full = self._is_full(active)
        cached = self._order.outlook.cached(request)
        if not budget.take(cached, request.num_tokens) or (not full and self._blocked is None):
            return False  # this step's budget is used up
        needed = tokens_needed(
            request.num_tokens - cached, self._new_tokens(request), self._manager.page_size
        )
        required = cached + needed
        spared = [row.request for row in rows]
        if self._preemption.make_way(request, int(full), cached, required, spared):
            return True
        if full:  # it was not tried
            self._blocked = self._blocked_by(waiting, required)
        return False

    def _blocked_by(self, waiting: WaitingQueue, required: int) -> _Blocked:
        return _Blocked(waiting.version, self._manager.published, self._table.epoch, required)

    def _is_full(self, active: dict[str, Request]) -> bool:
        return len(active) >= self._config.max_running_requests or not self._manager.rows.available

    def _new_tokens(self, request: Request) -> int:
        return min(request.new_tokens_left, self._config.clip_max_new_tokens)

    def _try_admit(
        self,
        request: Request,
        active: dict[str, Request],
        budget: PrefillBudget,
        reserved: float,
        waiting: WaitingQueue,
    ) -> BatchRow | None:
        if len(active) >= self._config.max_running_requests:
            return None
        available = self._manager.available
        lease = self._manager.open(
            request.tokens,
            request.namespace,
            keep_from=request.keep_from,
            priority=request.priority,
            retention=request.retention,
        )
        if lease is None:
            return None
        # Counted while the lease locks its prefix, which is no longer evictable then.
        extend = request.num_tokens - lease.protected
        needed = tokens_needed(extend, self._new_tokens(request), self._manager.page_size)
        taken = budget.take(lease.protected, request.num_tokens)
        required = needed + available - self._manager.available
        fits = required <= available - reserved
        if not fits or not taken or not self._manager.extend(lease, taken):
            self._manager.close(lease, None)
            if not fits:
                self._blocked = self._blocked_by(waiting, required)
            return None
        self._mark_admitted(request, lease)
        return self._row(request, lease, taken, budget)

    def _mark_admitted(self, request: Request, lease: Lease) -> None:
        self._table.admit(request, lease)
        request.scheduled = lease.protected
        request.prefill_end = request.num_tokens
        if self._fair is not None:
            self._fair.let_in(request, request.num_tokens - lease.protected)
        if request.cached_tokens is None:
            # Only the first time: what a retracted request finds again is its own work, not a hit.
            request.cached_tokens, request.brought = lease.protected, lease.brought
            if request.explain_cache:
                request.cache_miss = cache_miss(
                    self._manager, lease, request.tokens, request.keep_from
                )
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
        self._chunked = None if complete else request
        request.scheduled = end
        return BatchRow(
            request, lease, start, end, samples=complete and request.new_tokens_left > 0
        )
