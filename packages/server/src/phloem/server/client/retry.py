"""When a client asks again: by default only what the server refused for now, or never saw."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from phloem.server.client.errors import RequestFailed

T = TypeVar("T")
Sleep = Callable[[float], Awaitable[None]]


def refused_for_now(error: RequestFailed) -> bool:
    """Whether nothing has run: the server has not seen the request, or was too busy for it."""
    return error.unsent or error.status in (429, 503)


@dataclass(frozen=True, slots=True)
class Retries:
    """How often a request is sent again, and after what wait.

    The wait is the server's `Retry-After`, or else doubles from `first_wait`, a random part of it
    left out so that many clients do not come back together.
    """

    attempts: int = 4
    """All together; 1: none again."""
    first_wait: float = 0.5
    """Seconds."""
    longest_wait: float = 30.0
    """A server that wants a longer one is not asked again."""
    safe: Callable[[RequestFailed], bool] = refused_for_now
    """Which failures it is right to send a request again after."""
    sleep: Sleep = asyncio.sleep

    async def run(self, call: Callable[[], Awaitable[T]]) -> T:
        """What `call` comes to.

        Raises:
            RequestFailed: of the last attempt.
        """
        attempt = 1
        while True:
            try:
                return await call()
            except RequestFailed as error:
                wait = self._wait(attempt, error)
                if wait is None:
                    raise
            await self.sleep(wait)
            attempt += 1

    def _wait(self, attempt: int, error: RequestFailed) -> float | None:
        if attempt >= self.attempts or not self.safe(error):
            return None
        if error.retry_after is not None:
            return error.retry_after if error.retry_after <= self.longest_wait else None
        wait = min(self.first_wait * 2.0 ** (attempt - 1), self.longest_wait)
        return wait * random.uniform(0.5, 1.0)


NO_RETRIES = Retries(attempts=1)
