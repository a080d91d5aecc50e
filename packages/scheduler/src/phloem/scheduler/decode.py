"""Room for the next token of every running request; when there is none, who gives way."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from phloem.mem_pool import CacheManager
from phloem.scheduler.batch import BatchRow
from phloem.scheduler.budget import NewTokenRatio
from phloem.scheduler.request import FinishReason, Request, Status

Retract = Callable[[Request], None]
Fail = Callable[[Request, FinishReason], None]


class DecodePlanner:
    """Plans the decode part of a step, retracting requests when the pool cannot hold them all."""

    def __init__(
        self, manager: CacheManager, ratio: NewTokenRatio, retract: Retract, fail: Fail
    ) -> None:
        self._manager = manager
        self._ratio = ratio
        self._retract = retract
        self._fail = fail

    def plan(self, active: Sequence[Request], may_retract: bool = True) -> list[BatchRow] | None:
        """A decode row for every request that may go on; None: memory is short and nobody may give
        way now.

        A request in flight cannot give its slots back, so before anybody is retracted the caller
        has to process what is in flight and plan again. Reservations made until then are kept and
        found again.
        """
        left = [r for r in active if r.status is not Status.FINISHED]
        retracted = False
        while (short := self._reserve(left)) is not None:
            if not may_retract or any(r.in_flight for r in active):
                return None
            victim = _first_to_go(left)
            left.remove(victim)
            if not left:
                self._fail(victim, self._out_of_memory(short))
                return []
            self._retract(victim)
            retracted = True
        if retracted:
            self._ratio.retracted(left)
        return [self._row(request) for request in left if _decodes(request)]

    def _row(self, request: Request) -> BatchRow:
        assert request.lease is not None, f"{request.rid} is running without a lease"
        start, request.scheduled = request.scheduled, request.length
        return BatchRow(request, request.lease, start, request.length, samples=True)

    def _reserve(self, requests: Sequence[Request]) -> Request | None:
        """Make room for the newest token of each; the first request without room, if any."""
        for request in requests:
            lease = request.lease
            if lease is None or not _decodes(request):
                continue
            missing = request.length - lease.allocated
            if missing > 0 and not self._manager.extend(lease, missing):
                return request
        return None

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


def _decodes(request: Request) -> bool:
    """Whether the next step can compute the newest token of this request."""
    return (
        request.status is Status.RUNNING
        and request.scheduled < request.length
        and request.new_tokens_left > 0
    )


def _first_to_go(requests: Sequence[Request]) -> Request:
    """Shortest output first, then longest prompt: the least work is lost, the most memory comes
    back.
    """
    return min(requests, key=lambda r: (r.num_output, -r.num_prompt))
