"""How much each caller may ask for: requests and tokens a minute, and sequences at a time.

Owns the token buckets and the answer to who asks for too much. A request pays for its sequences
and its prompts' tokens when it is let in, and for its outputs' as they come: these may put it in
debt, which must be made good before the next one. What was let in but not begun is given back.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
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
_NOT_BEGUN = (400, 429, 503)
"""Statuses of requests that were refused before anything was computed for them."""


class Bucket:
    """Holds a minute's worth of a limit, and fills with time."""

    __slots__ = ("_at", "_level", "limit")

    def __init__(self, limit: int, now: float) -> None:
        self.limit = limit
        self._level = float(limit)
        self._at = now

    def level(self, now: float) -> float:
        """What may be taken, by the clock `now` in seconds; negative: a debt."""
        self._level = min(self._level + (now - self._at) * self.limit / _MINUTE, self.limit)
        self._at = now
        return self._level

    def take(self, amount: int) -> None:
        """Take it, be it there or not; less than nothing gives it back."""
        self._level = min(self._level - amount, self.limit)

    def wait(self, amount: int, now: float) -> float:
        """Seconds until so much is there; 0: it is; inf: it will never be."""
        if amount > self.limit:
            return math.inf
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
    spent: int = 0
    """Tokens of its outputs."""

    def spend(self, tokens: int) -> None:
        """Note new tokens of an output."""
        self.spent += tokens
        if self._tokens is not None:
            self._tokens.take(tokens)


class Limiter:
    """The limits of a server's callers; used in one event loop."""

    def __init__(self, limits: KeyLimits, clock: Callable[[], float] = monotonic) -> None:
        self._limits = limits
        self._clock = clock
        self._accounts: OrderedDict[str | None, _Account] = OrderedDict()

    @contextmanager
    def admitted(self, scope: Scope, requests: Sequence[GenerationRequest]) -> Iterator[Admission]:
        """Within it, the sequences `requests` of the HTTP request of `scope` are running.

        The answer's headers tell what is left of the caller's limits.

        Raises:
            ApiError: 429, for too much.
        """
        tokens = sum(len(request.prompt_ids) for request in requests)
        headers = scope.get("state", {}).get("response_headers")
        with self.admit(caller_in(scope), len(requests), tokens, headers) as admission:
            yield admission

    @contextmanager
    def admit(
        self,
        caller: Caller,
        sequences: int,
        tokens: int,
        headers: list[tuple[bytes, bytes]] | None = None,
    ) -> Iterator[Admission]:
        """Within it, so many sequences of `caller` are running; their prompts have `tokens`.

        Raises:
            ApiError: 429, for too much; `headers` gets what is left then too.
        """
        limits = caller.limits.over(self._limits)
        if (caller.admin and caller.key_id is not None) or limits == UNLIMITED:
            yield Admission(None)
            return
        account = self._account(caller, limits)
        asked = {"requests": sequences, "tokens": tokens}
        try:
            self._check(account, asked)
            for name, bucket in account.buckets.items():
                bucket.take(asked[name])
        finally:
            if headers is not None:
                headers += self._told(account)
        admission = Admission(account.buckets.get("tokens"))
        account.running += sequences
        try:
            yield admission
        except (ApiError, ServiceUnavailable) as error:
            if not admission.spent and getattr(error, "status", 503) in _NOT_BEGUN:
                for name, bucket in account.buckets.items():
                    bucket.take(-asked[name])
            raise
        finally:
            account.running -= sequences

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

    def _check(self, account: _Account, asked: dict[str, int]) -> None:
        sequences, most = asked["requests"], account.concurrent
        if most is not None and account.running + sequences > most:
            raise ApiError(
                f"{account.running} sequences of this key are running and {sequences} more were "
                f"asked for: it may have {most} at a time, so let some end first",
                429,
                code=_CODE,
                retry_after=1 if sequences <= most else None,
            )
        for name, bucket in account.buckets.items():
            wait = bucket.wait(asked[name], self._clock())
            if math.isinf(wait):
                raise ApiError(
                    f"the request has {asked[name]} {name}, and this key may have {bucket.limit} "
                    "a minute: send less at once",
                    429,
                    code=_CODE,
                )
            if wait > 0:
                raise ApiError(
                    f"this key may have {bucket.limit} {name} a minute, and the request has "
                    f"{asked[name]}: send it again in {math.ceil(wait)} s",
                    429,
                    code=_CODE,
                    retry_after=wait,
                )

    def _told(self, account: _Account) -> list[tuple[bytes, bytes]]:
        """The headers that OpenAI's clients know."""
        now, told = self._clock(), []
        for name, bucket in account.buckets.items():
            left = bucket.level(now)
            full = (bucket.limit - left) * _MINUTE / bucket.limit
            for what, value in (
                ("limit", str(bucket.limit)),
                ("remaining", str(max(math.floor(left), 0))),
                ("reset", f"{full:.3f}s"),
            ):
                told.append((f"x-ratelimit-{what}-{name}".encode(), value.encode()))
        return told
