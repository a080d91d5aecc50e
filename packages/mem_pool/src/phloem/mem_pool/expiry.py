"""When to look for what was not used for long; what is done then is not its business."""

from __future__ import annotations

from collections.abc import Callable

_LOOKS_PER_TTL = 8


class Expiry:
    """Says, a few times in each `ttl` seconds, what counts as unused for that long.

    Raises:
        ValueError: `ttl` is not positive.
    """

    def __init__(self, ttl: float, clock: Callable[[], float]) -> None:
        if not ttl > 0:
            raise ValueError(f"an idle time of {ttl} s would keep nothing: give more than 0")
        self._ttl = ttl
        self._clock = clock
        self._next = clock() + ttl

    def due(self) -> float | None:
        """The time of last use before which something is to go; None if it is too early to look."""
        now = self._clock()
        if now < self._next:
            return None
        self._next = now + self._ttl / _LOOKS_PER_TTL
        return now - self._ttl
