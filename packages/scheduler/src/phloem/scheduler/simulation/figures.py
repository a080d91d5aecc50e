"""Figures of a simulated run: rates, latencies, cached tokens, retractions.

The usual definitions, as in the load generator: TTFT and e2e count from a request's arrival, ITL is
from one token of a request to its next, over all of them; queue time is from arrival to first
admission. Percentiles lie between the two nearest values, but those of ITL are taken from bins that
are 1 % wide. Rates count over the time from the first arrival to the last end.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from phloem.scheduler.simulation.records import Floats, Records
from phloem.scheduler.simulation.setup import Setup


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of one run; None where nothing was measured. Seconds, unless a name says more."""

    requests: int
    refused: int
    """Could never fit, or found the queue full."""
    failed: int
    """Ended with an error, or over a time limit."""
    duration_s: float
    prompt_tokens: int
    output_tokens: int
    output_tokens_per_s: float
    total_tokens_per_s: float
    """Prompt and output."""
    cached_share: float
    """Of the prompt tokens of all requests that were admitted, those found in the cache."""
    retractions: int
    ttft_p50_s: float | None
    ttft_p99_s: float | None
    itl_p50_s: float | None
    itl_p99_s: float | None
    e2e_p50_s: float | None
    e2e_p99_s: float | None
    queue_p50_s: float | None
    queue_p99_s: float | None
    steps: int
    busy_share: float
    """Of the time of all replicas, how much they spent in steps."""
    mean_rows: float
    """Rows that decode, over all steps."""
    peak_running: int
    """The most requests that held memory in one replica."""

    def as_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Outcome:
    """A configuration and how it did."""

    setup: Setup
    figures: Figures


def figures_of(records: Records, setup: Setup) -> Figures:
    """The figures of a run."""
    arrived, overhead = records.arrived, setup.cost_model.request
    good = ~(records.refused | records.failed)
    admitted = ~np.isnan(records.admitted)
    begun, ended = np.nanmin(arrived), np.nanmax(records.finished, initial=float(arrived.min()))
    duration = max(float(ended - begun), 1e-9)
    prompt, output = int(records.prompt[good].sum()), int(records.produced[good].sum())
    counters = records.counters
    ttft = (records.first_token - arrived)[good] + overhead
    e2e = (records.finished - arrived)[good] + overhead
    queue = (records.admitted - arrived)[admitted]
    return Figures(
        requests=len(arrived),
        refused=int(records.refused.sum()),
        failed=int(records.failed.sum()),
        duration_s=duration,
        prompt_tokens=prompt,
        output_tokens=output,
        output_tokens_per_s=output / duration,
        total_tokens_per_s=(prompt + output) / duration,
        cached_share=float(records.cached[admitted].sum() / max(records.prompt[admitted].sum(), 1)),
        retractions=int(records.retractions.sum()),
        ttft_p50_s=_percentile(ttft, 50),
        ttft_p99_s=_percentile(ttft, 99),
        itl_p50_s=records.itl.percentile(50),
        itl_p99_s=records.itl.percentile(99),
        e2e_p50_s=_percentile(e2e, 50),
        e2e_p99_s=_percentile(e2e, 99),
        queue_p50_s=_percentile(queue, 50),
        queue_p99_s=_percentile(queue, 99),
        steps=counters.steps,
        busy_share=counters.busy_s / (duration * setup.replicas),
        mean_rows=counters.decode_rows / max(counters.steps, 1),
        peak_running=counters.peak_running,
    )


def _percentile(values: Floats, percent: float) -> float | None:
    return float(np.percentile(values, percent)) if len(values) else None
