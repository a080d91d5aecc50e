"""How calls are timed side by side: in turns, so that what disturbs the machine disturbs all."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

Call = Callable[[], Any]

ROUNDS = 3
_PAUSE_S = 0.002
"""Between two sides: threads of the one before may stay awake for a while, waiting for work."""


def medians(calls: Sequence[Call], seconds: float) -> list[float]:
    """The median time in seconds of each call, made in turns of about `seconds` for each in all."""
    return [statistics.median(taken) for taken in _times(calls, seconds)]


def best(calls: Sequence[Call], seconds: float) -> list[float]:
    """The shortest time in seconds of each call, made in the same turns."""
    return [min(taken) for taken in _times(calls, seconds)]


def _times(calls: Sequence[Call], seconds: float) -> list[list[float]]:
    """All times of each call.

    The first call of a turn finds the caches as another side left them: it does not count, unless
    it takes the whole turn.
    """
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(ROUNDS):
        for call, taken in zip(calls, times):
            time.sleep(_PAUSE_S)
            _turn(call, seconds / ROUNDS, taken)
    return times


def _turn(call: Call, seconds: float, taken: list[float]) -> None:
    end = time.perf_counter() + seconds
    first = _timed(call)
    if time.perf_counter() >= end:
        taken.append(first)
        return
    while True:
        taken.append(_timed(call))
        if time.perf_counter() >= end:
            return


def _timed(call: Call) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
