"""Counts of values by size, as a histogram shows them, for one thread; light enough for each token.

It knows nothing of Prometheus, so that the scheduler process, which has no such library, counts
its steps alike.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any


class Distribution:
    """How many of the values seen were at most so large.

    Attributes:
        bounds: inclusive upper ends of the buckets, rising; what is larger has one more bucket.
        counts: values by bucket, not cumulated; one more than there are bounds.
        sum: of all values.
    """

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """A value was seen, or as many that are equal."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times

    def as_dict(self) -> dict[str, Any]:
        """The attributes, to be sent to another process."""
        return {"bounds": self.bounds, "counts": self.counts, "sum": self.sum}

    @classmethod
    def of(cls, sent: dict[str, Any]) -> Distribution:
        """What `as_dict` gave."""
        made = cls(sent["bounds"])
        made.counts, made.sum = list(sent["counts"]), sent["sum"]
        return made
