"""Figures of a run: rates, latencies, cached tokens, failures; and medians over repetitions.

The usual definitions. TTFT: from sending a request to its first text. ITL: from one piece of text
to the next, over all of them. TPOT: from the first text to the last, divided by the tokens after
the first, one value a request. Rates count the tokens of all answers that did not fail over the
wall-clock time of the whole run. A percentile lies between the two nearest values (linear
interpolation, numpy's default).
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from phloem.server.bench.workloads import is_person
from phloem.server.streamed_answer import Answer


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of one run of a workload, or medians of several; None where nothing was measured."""

    requests: float
    failed: float
    wall_s: float
    prompt_tokens: float
    output_tokens: float
    cached_tokens: float | None
    """Prompt tokens from the server's cache; None when it never says."""
    output_tokens_per_s: float
    total_tokens_per_s: float
    """Prompt and output."""
    ttft_p50_ms: float | None
    ttft_p99_ms: float | None
    itl_p50_ms: float | None
    itl_p99_ms: float | None
    tpot_p50_ms: float | None
    valid_json: float | None = None
    """Of a structured workload: share of the requests answered as the schema wants."""
    cut_by_length: float | None = None
    """Of a structured workload: answers that ran into `max_tokens`."""
    first_error: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """The figures that there are, by name."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def summarize(answers: Sequence[Answer], wall_s: float, *, structured: bool = False) -> Figures:
    """The figures of a run that took `wall_s` seconds.

    Token counts of answers that did not fail must be known.
    """
    good = [answer for answer in answers if answer.error is None]
    errors = [answer.error for answer in answers if answer.error is not None]
    cached = [a.cached_tokens for a in good if a.cached_tokens is not None]
    prompt = sum(a.prompt_tokens or 0 for a in good)
    output = sum(a.completion_tokens or 0 for a in good)
    ttft = [a.arrivals[0] * 1e3 for a in good]
    itl = [
        (later - earlier) * 1e3 for a in good for earlier, later in itertools.pairwise(a.arrivals)
    ]
    tpot = [
        (a.arrivals[-1] - a.arrivals[0]) * 1e3 / (a.completion_tokens - 1)
        for a in good
        if a.completion_tokens is not None and a.completion_tokens > 1
    ]
    return Figures(
        requests=len(answers),
        failed=len(errors),
        wall_s=wall_s,
        prompt_tokens=prompt,
        output_tokens=output,
        cached_tokens=sum(cached) if cached else None,
        output_tokens_per_s=output / wall_s,
        total_tokens_per_s=(prompt + output) / wall_s,
        ttft_p50_ms=percentile(ttft, 50),
        ttft_p99_ms=percentile(ttft, 99),
        itl_p50_ms=percentile(itl, 50),
        itl_p99_ms=percentile(itl, 99),
        tpot_p50_ms=percentile(tpot, 50),
        valid_json=sum(is_person(a.text) for a in good) / len(answers) if structured else None,
        cut_by_length=sum(a.finish_reason == "length" for a in good) if structured else None,
        first_error=errors[0] if errors else None,
    )


def medians(runs: Sequence[Figures]) -> Figures:
    """The median of each figure, over the runs that have it; the first error there was."""
    middle: dict[str, Any] = {}
    for field in fields(Figures):
        values = [v for v in (getattr(run, field.name) for run in runs) if v is not None]
        if field.name == "first_error":
            middle[field.name] = values[0] if values else None
        else:
            middle[field.name] = statistics.median(values) if values else None
    return Figures(**middle)


def percentile(values: Iterable[float], percent: float) -> float | None:
    """The value that `percent` percent of the values do not exceed; None of no values."""
    ordered = sorted(values)
    if not ordered:
        return None
    position = (len(ordered) - 1) * percent / 100
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)
