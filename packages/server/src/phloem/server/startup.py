"""How long the parts of a start take."""

from __future__ import annotations

import time
from collections.abc import Mapping


class Laps:
    """Measures parts that follow one another."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        """Of each part by its name, in order."""
        self._last = time.monotonic()

    def lap(self, name: str) -> None:
        """The part since the last lap is over, and is called `name`."""
        now = time.monotonic()
        self.seconds[name] = now - self._last
        self._last = now


def breakdown(seconds: Mapping[str, float]) -> str:
    """The parts in one line, those too short to matter left out."""
    return ", ".join(f"{name} {s:.2f} s" for name, s in seconds.items() if s >= _WORTH_TELLING)


_WORTH_TELLING = 0.005
