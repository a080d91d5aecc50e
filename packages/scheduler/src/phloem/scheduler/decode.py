"""Room for the next token of every running request; when there is none, who gives way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from phloem.mem_pool import CacheManager
from phloem.scheduler.batch import BatchRow
from phloem.scheduler.budget import NewTokenRatio
from phloem.scheduler.decode_set import Decode, DecodeSet
from phloem.scheduler.request import FinishReason, Request
from phloem.scheduler.table import RUNNING, RequestTable, Rows

Retract = Callable[[Request], None]
Fail = Callable[[Request, FinishReason], None]


class _Extend(NamedTuple):
    """A request with several new tokens, and where those end that the next step computes."""

    request: Request
    end: int


class DecodePlanner:
    """Plans the decode part of a step, retracting requests when the pool cannot hold them all.

    `most_new` bounds the tokens of those that have several to compute, all of them together, but
    for one token each.
    """

    def __init__(
        self,
        manager: CacheManager,
        table: RequestTable,
        ratio: NewTokenRatio,
        most_new: int,
        retract: Retract,
        fail: Fail,
    ) -> None:
        self._manager = manager
        self._table = table
        self._ratio = ratio
        self._most_new = most_new
        self._retract = retract
        self._fail = fail
        self._members: DecodeSet | None = None

    def plan(self, held: Rows, may_retract: bool = True) -> tuple[list[BatchRow], Decode | None]:
        """The decodes of all requests in rows `held` that may go on: first those that have several
        new tokens to compute, one by one, then all others together.

        Nothing where memory is short and nobody may give way now. A request in flight cannot give
        its slots back, so before anybody is retracted the caller has to process what is in flight
        and plan again.
        """
        members = self._members
        if members is not None and members.goes_on(self._table, held):
            slots = members.leases.extend()
            if slots is not None:
                return [], members.next(slots)
        retracted = False
        while not self._reserve(*(ready := self._ready(held))):
            if not may_retract or self._table.in_flight[held].any():
                return [], None
            left = self._table.requests(held)
            victim = _first_to_go(left)
            assert victim.lease is not None, f"{victim.rid} is running without a lease"
            held = held[held != victim.lease.row]
            if not len(held):
                self._fail(victim, self._out_of_memory(victim))
                return [], None
            self._retract(victim)
            retracted = True
        if retracted:
            self._ratio.retracted(self._table.requests(held))
        rows, several = ready
        return [self._chunk(extend) for extend in several], self._decode(rows)

    def _ready(self, held: Rows) -> tuple[Rows, list[_Extend]]:
        """The rows whose newest token the next step can compute, `held` itself if all of them can;
        and the requests that have more than one to compute, since a step may yield several, and
        text that a constraint forces is appended at once.
        """
        table = self._table
        length = table.length(held)
        new = length - table.scheduled[held]
        ready = (table.status[held] == RUNNING) & (length < table.end[held]) & ~table.waits[held]
        one = ready & (new == 1)
        if one.all():
            return held, []
        several, left = [], self._most_new
        for request in table.requests(held[ready & (new > 1)]):
            end = min(request.length, request.scheduled + max(left, 1))
            left -= end - request.scheduled
            several.append(_Extend(request, end))
        return held[one], several

    def _reserve(self, rows: Rows, several: Sequence[_Extend]) -> bool:
        """Make room for the new tokens of all. What was reserved when it fails is found again."""
        for request, end in several:
            lease = request.lease
            assert lease is not None, f"{request.rid} is running without a lease"
            missing = end - lease.allocated
            if missing > 0 and not self._manager.extend(lease, missing):
                return False
        return self._manager.extend_rows(rows)

    def _chunk(self, extend: _Extend) -> BatchRow:
        request, end = extend
        assert request.lease is not None, f"{request.rid} is running without a lease"
        start, request.scheduled = request.scheduled, end
        return BatchRow(request, request.lease, start, end, samples=end == request.length)

    def _decode(self, rows: Rows) -> Decode | None:
        if not len(rows):
            return None
        table, members = self._table, self._members
        if members is None or members.epoch != table.epoch or not _equal(members.rows, rows):
            self._members = members = DecodeSet(table, self._manager, rows)
        starts = table.scheduled[rows]
        return members.decode(starts)

    def _out_of_memory(self, request: Request) -> FinishReason:
        return FinishReason(
            "error",
            message=(
                f"the KV cache holds {self._manager.capacity} tokens and request {request.rid!r} "
                f"needs more than that at length {request.length}: ask for fewer new tokens or "
                "serve with a larger pool"
            ),
            status_code=500,
        )


def _first_to_go(requests: Sequence[Request]) -> Request:
    """The least urgent first, then shortest output, then longest prompt: the least work is lost,
    the most memory comes back.
    """
    return min(requests, key=lambda r: (r.priority, r.num_output, -r.num_prompt))


def _equal(one: Rows, other: Rows) -> bool:
    return one is other or (len(one) == len(other) and bool((one == other).all()))
