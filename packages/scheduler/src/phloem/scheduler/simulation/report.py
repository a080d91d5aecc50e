"""Outcomes as a table for people and as JSON.

Owns which figures are shown and in which unit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from phloem.scheduler.simulation.figures import Figures, Outcome
from phloem.scheduler.simulation.setup import AXES, label, varied
from phloem.scheduler.simulation.trace import Trace


def table(outcomes: Sequence[Outcome]) -> str:
    """A line for each configuration, named by what differs."""
    axes = list(varied([outcome.setup for outcome in outcomes])) or ["policy"]
    rows = [
        ["", *_COLUMNS],
        *([label(outcome.setup, axes), *_cells(outcome.figures)] for outcome in outcomes),
    ]
    widths = [max(map(len, column)) for column in zip(*rows)]
    lines = []
    for name, *cells in rows:
        lines.append("  ".join([name.ljust(widths[0]), *map(str.rjust, cells, widths[1:])]))
    return "\n".join(lines)


def settings(outcomes: Sequence[Outcome]) -> str:
    """What all configurations have in common, in a line."""
    setups = [outcome.setup for outcome in outcomes]
    same = [axis for axis in AXES if axis not in varied(setups)]
    more = [f"{name} {value}" for name, value in setups[0].more.items()]
    return ", ".join([label(setups[0], same), *more])


def as_json(trace: Trace, warm: bool, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Everything that was asked and found."""
    return {
        "trace": trace.name,
        "warm": warm,
        "outcomes": [
            {"setup": outcome.setup.as_dict(), "figures": outcome.figures.as_dict()}
            for outcome in outcomes
        ],
    }


_COLUMNS = (
    *("output tok/s", "total tok/s", "cached", "TTFT p50/p99 s", "ITL p50/p99 ms"),
    *("e2e p50/p99 s", "queue p50/p99 s", "retracted", "refused", "busy"),
)


def _cells(figures: Figures) -> list[str]:
    return [
        f"{figures.output_tokens_per_s:,.0f}",
        f"{figures.total_tokens_per_s:,.0f}",
        f"{figures.cached_share:.1%}",
        _pair(figures.ttft_p50_s, figures.ttft_p99_s),
        _pair(figures.itl_p50_s, figures.itl_p99_s, 1e3),
        _pair(figures.e2e_p50_s, figures.e2e_p99_s),
        _pair(figures.queue_p50_s, figures.queue_p99_s),
        f"{figures.retractions:,}",
        f"{figures.refused + figures.failed:,}",
        f"{figures.busy_share:.0%}",
    ]


def _pair(first: float | None, second: float | None, scale: float = 1.0) -> str:
    return "/".join("-" if v is None else f"{v * scale:.3g}" for v in (first, second))
