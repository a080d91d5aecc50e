"""How much each caller may ask for: requests and tokens a minute, and sequences at a time.

Owns the token buckets and the answer to who asks for too much. A request pays for its sequences
and its prompts' tokens when it is let in, and for its outputs' as they come: these may put it in
debt, which must be made good before the next one. What was let in but not begun is given back.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import monotonic

from starlette.types import Scope

from phloem.server.frontend import GenerationRequest, ServiceUnavailable
from phloem.server.http.errors import ApiError
from phloem.server.http.tenancy import Caller, caller_in
from phloem.server.keys import UNLIMITED, KeyLimits

MAX_ACCOUNTS = 10_000
"""Callers that are remembered where there are no keys: anybody may send any number of names."""
_MINUTE = 60.0
_CODE = "rate_limit_exceeded"
_TOLD = b"x-ratelimit-"
_BEGUN = "begun_account"
"""In the state of a scope: whose account has counted its HTTP request."""
_NOT_BEGUN = (400, 429, 503)
"""Statuses of requests that were refused before anything was computed for them."""


class Bucket:
    """Holds a minute's worth of a limit, and fills with time."""

    __slots__ = ("_at", "_level", "limit")

    # In any span of so many minutes, no more is taken than 1 + that many times the limit, and the
    # debt of what came last.

    def __init__(self, limit: int, now: float) -> None:
        self.limit = limit
        self._level = float(limit)
        self._at = now

    def level(self, now: float) -> float:
        """What may be taken, by the clock `now` in seconds; negative: a debt."""
        self._level = min(self._level + (now - self._at) * self.limit / _MINUTE, self.limit)
        self._at = now
        return self._level

    def take(self, amount: int, now: float) -> None:
        """Take it, be it there or not; less than nothing gives it back."""
        # What came in until now must not come in again on top.
        self._level = min(self.level(now) - amount, self.limit)

    def wait(self, amount: int, now: float) -> float:
        """Seconds until so much would be there, had it room for that; 0: it is there."""
        return max(amount - self.level(now), 0.0) * _MINUTE / self.limit


@dataclass(slots=True)
class _Account:
    """What one caller has asked for."""

    concurrent: int | None
    buckets: dict[str, Bucket] = field(default_factory=dict)
    """By what they limit: requests, tokens."""
    running: int = 0


@dataclass(slots=True)
class Admission:
    """A request that was let in."""

    _tokens: Bucket | None
    _clock: Callable[[], float]
    spent: int = 0
    """Tokens of its outputs."""

    def spend(self, tokens: int) -> None:
        """Note new tokens of an output."""
        self.spent += tokens
        if self._tokens is not None:
            self._tokens.take(tokens, self._clock())


class Limiter:
    """The limits of a server's callers; used in one event loop."""

    def __init__(self, limits: KeyLimits, clock: Callable[[], float] = monotonic) -> None:
        self._limits = limits
        self._clock = clock
        self._accounts: OrderedDict[str | None, _Account] = OrderedDict()

    def begin(self, scope: Scope) -> None:
        """Count the HTTP request of `scope` as a sequence, until `end` is told of it: so that no
        work is done for who may ask for nothing, and only so much at a time for anybody.

        Raises:
            ApiError: 429, for too much.
        """
        caller = caller_in(scope)
        limits = self._limits_of(caller)
        if limits is None:
            return
        account = self._account(caller, limits)
        state = scope.setdefault("state", {})
        try:
            self._check(account, 1, {"requests": 1, "tokens": 0})
            self._take(account, {"requests": 1})
        finally:
            self._tell(account, state.get("response_headers"))
        account.running += 1
        state[_BEGUN] = account

    def end(self, scope: Scope) -> None:
        """The HTTP request of `scope`, if it began, is over; if its status says that it was refused
        before anything was computed, it costs nothing.
        """
        state = scope.get("state", {})
        account = state.pop(_BEGUN, None)
        if account is None:
            return
        account.running -= 1
        if state.get("status") in _NOT_BEGUN:
            self._take(account, {"requests": -1})

    @contextmanager
    def admitted(self, scope: Scope, requests: Sequence[GenerationRequest]) -> Iterator[Admission]:
        """Within it, the sequences `requests` of the HTTP request of `scope` are running.

        The answer's headers tell what is left of the caller's limits.

        Raises:
            ApiError: 429, for too much.
        """
        tokens = sum(len(request.prompt_ids) for request in requests)
        state = scope.get("state", {})
        headers = state.get("response_headers")
        begun = 1 if _BEGUN in state else 0
        with self.admit(caller_in(scope), len(requests), tokens, headers, begun) as admission:
            yield admission

    @contextmanager
    def admit(
        self,
        caller: Caller,
        sequences: int,
        tokens: int,
        headers: list[tuple[bytes, bytes]] | None = None,
        begun: int = 0,
    ) -> Iterator[Admission]:
        """Within it, so many sequences of `caller` are running; their prompts have `tokens`.

        So many of them as have `begun` are counted and paid for already.

        Raises:
            ApiError: 429, for too much; `headers` gets what is left then too.
        """
        limits = self._limits_of(caller)
        if limits is None:
            yield Admission(None, self._clock)
            return
        account = self._account(caller, limits)
        asked = {"requests": sequences - begun, "tokens": tokens}
        try:
            self._check(account, sequences, asked, begun)
            self._take(account, asked)
        finally:
            self._tell(account, headers)
        admission = Admission(account.buckets.get("tokens"), self._clock)
        account.running += sequences - begun
        try:
            yield admission
        except (ApiError, ServiceUnavailable) as error:
            if not admission.spent and getattr(error, "status", 503) in _NOT_BEGUN:
                self._take(account, {name: -amount for name, amount in asked.items()})
            raise
        finally:
            account.running -= sequences - begun

    def _limits_of(self, caller: Caller) -> KeyLimits | None:
        """None: it may ask for any amount."""
        limits = caller.limits.over(self._limits)
        free = (caller.admin and caller.key_id is not None) or limits == UNLIMITED
        return None if free else limits

    def _take(self, account: _Account, amounts: Mapping[str, int]) -> None:
        now = self._clock()
        for name, amount in amounts.items():
            if name in account.buckets:
                account.buckets[name].take(amount, now)

    def _account(self, caller: Caller, limits: KeyLimits) -> _Account:
        account = self._accounts.get(caller.tenant)
        if account is None:
            account = _Account(limits.concurrent)
            for name in ("requests", "tokens"):
                limit = getattr(limits, name)
                if limit is not None:
                    account.buckets[name] = Bucket(limit, self._clock())
            self._accounts[caller.tenant] = account
            self._forget()
        self._accounts.move_to_end(caller.tenant)
        return account

    def _forget(self) -> None:
        """Let go of who has been away for longest, but of nobody whose requests are running."""
        if len(self._accounts) <= MAX_ACCOUNTS:
            return
        for tenant, account in self._accounts.items():
            if not account.running:
                del self._accounts[tenant]
                return

    def _check(
        self, account: _Account, sequences: int, asked: Mapping[str, int], begun: int = 0
    ) -> None:
        running, most = account.running - begun, account.concurrent
        if most is not None and running + sequences > most:
            raise ApiError(
                f"{running} sequences of this key are running and {sequences} more were "
                f"asked for: it may have {most} at a time, so let some end first",
                429,
                code=_CODE,
                retry_after=1 if sequences <= most else None,
            )
        whole = {**asked, "requests": sequences}
        for name, bucket in account.buckets.items():
            wait = bucket.wait(asked[name], self._clock())
            if whole[name] > bucket.limit:
                raise ApiError(
                    f"the request has {whole[name]} {name}, and this key may have {bucket.limit} "
                    "a minute: send less at once",
                    429,
                    code=_CODE,
                )
            if wait > 0:
                raise ApiError(
                    f"this key may have {bucket.limit} {name} a minute, and the request has "
                    f"{whole[name]}: send it again in {math.ceil(wait)} s",
                    429,
                    code=_CODE,
                    retry_after=wait,
                )

    def _tell(self, account: _Account, headers: list[tuple[bytes, bytes]] | None) -> None:
        """Put what is left in the headers that OpenAI's clients know."""
        if headers is None:
            return
        headers[:] = [each for each in headers if not each[0].startswith(_TOLD)]
        now = self._clock()
        for name, bucket in account.buckets.items():
            left = bucket.level(now)
            full = (bucket.limit - left) * _MINUTE / bucket.limit
            for what, value in (
                ("limit", str(bucket.limit)),
                ("remaining", str(max(math.floor(left), 0))),
                ("reset", f"{full:.3f}s"),
            ):
                headers.append((_TOLD + f"{what}-{name}".encode(), value.encode()))
