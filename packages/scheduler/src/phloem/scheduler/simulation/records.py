"""What happens to the requests of a trace while it is simulated, as arrays by their index.

Owns what is noted and how; what is made of it is `phloem.scheduler.simulation.figures`.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log

import numpy as np
import numpy.typing as npt

from phloem.scheduler.simulation.trace import END_OF_TEXT, Trace, output_token

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]


class LogHistogram:
    """Counts of durations in bins that are 1 % wide; percentiles within half of that."""

    _LEAST = 1e-6
    _WIDTH = log(1.01)
    _BINS = 2800
    """Up to more than 10**6 seconds."""

    def __init__(self) -> None:
        self.counts = np.zeros(self._BINS, np.int64)

    def add(self, seconds: Floats, times: int = 1) -> None:
        """Count each of some durations `times` times."""
        bins = np.log(np.maximum(seconds, self._LEAST) / self._LEAST) / self._WIDTH
        at = np.minimum(bins.astype(np.int64), self._BINS - 1)
        if len(at) < 32:
            np.add.at(self.counts, at, times)
        else:
            self.counts += times * np.bincount(at, minlength=self._BINS)

    def percentile(self, percent: float) -> float | None:
        """The middle of the bin that holds it; None of nothing."""
        total = int(self.counts.sum())
        if not total:
            return None
        bin_ = int(np.searchsorted(np.cumsum(self.counts), percent / 100 * total))
        return self._LEAST * float(np.exp((bin_ + 0.5) * self._WIDTH))


@dataclass(slots=True)
class Counters:
    """Sums over all steps of all replicas."""

    steps: int = 0
    busy_s: float = 0.0
    """Of all replicas together."""
    computed_prompt_tokens: int = 0
    decode_rows: int = 0
    peak_running: int = 0
    """The most requests that held memory in one replica."""


class Records:
    """The course of each request; times are seconds of the simulation, NaN: it never came to that.

    `arrived`, `admitted`, `first_token` and `finished` are float64 [n]; `produced` (output tokens),
    `cached` (prompt tokens found in the cache at first admission) and `retractions` int32 [n];
    `refused` (it was not queued) and `failed` (it ended without all of its output) bool [n].
    """

    def __init__(self, trace: Trace) -> None:
        n = len(trace)
        self.arrived, self.admitted, self.first_token, self.finished = (
            np.full(n, np.nan) for _ in range(4)
        )
        self.produced, self.cached, self.retractions = (np.zeros(n, np.int32) for _ in range(3))
        self.refused, self.failed = np.zeros(n, np.bool_), np.zeros(n, np.bool_)
        self.itl = LogHistogram()
        self.counters = Counters()
        self._latest = np.full(n, np.nan)
        """When each request's newest token came."""
        requests = trace.requests
        self.prompt = np.array([r.num_prompt for r in requests], np.int64)
        self.output = np.array([r.output for r in requests], np.int32)
        self._stops = self.output < np.array([r.allowed for r in requests], np.int32)
        self._token = np.array([output_token(r, i) for i, r in enumerate(requests)], np.int32)

    def next_tokens(self, index: Indices) -> npt.NDArray[np.int32]:
        """The ids that these requests produce next; the last one ends those that stop early."""
        ends = self._stops[index] & (self.produced[index] + 1 == self.output[index])
        return np.where(ends, np.int32(END_OF_TEXT), self._token[index])

    def took(self, index: Indices, at: float) -> Indices:
        """A token of each of these requests came; returns the requests that it was the last of."""
        first = self.produced[index] == 0
        self.first_token[index[first]] = at
        later = index[~first]
        self.itl.add(at - self._latest[later])
        self._latest[index] = at
        self.produced[index] += 1
        over: Indices = index[self.produced[index] == self.output[index]]
        return over

    def took_run(self, index: Indices, ends: Floats) -> None:
        """A token of each of these requests came at the end of each of some steps, none the last or
        first of its request.
        """
        self.itl.add(ends[0] - self._latest[index])
        self.itl.add(np.diff(ends), times=len(index))
        self._latest[index] = ends[-1]
        self.produced[index] += len(ends)

    def unchanged_steps(self, index: Indices) -> int:
        """How many tokens all of these requests can take before the last one of any of them."""
        return int((self.output[index] - self.produced[index]).min()) - 1
