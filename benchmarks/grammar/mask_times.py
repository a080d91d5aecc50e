"""What engines took for constraints: medians of what was repeated, as figures and as a table.

Nothing is measured here; `masks.py` does that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np

from benchmarks.report import Figures

OURS = "fsm"


@dataclass
class Times:
    """What one engine took for a case, or for many: one value a compilation, a mask, a token.

    Each is the median over what was repeated, so that other programs of the machine do not count.
    """

    compile_ms: list[float]
    first_text_ms: list[float]
    """Compiling, and all masks of the first text after it."""
    served_ms: list[float]
    """Compiling, and all masks of all requests after it."""
    request_us: list[float]
    """Each mask of these requests: at first new ones, then ever more that are known."""
    cold_us: list[float]
    """Each mask of the first request for each text."""
    warm_us: list[float]
    """Each mask when all texts were followed before."""
    accept_us: list[float]

    @classmethod
    def of(cls, repeated: Mapping[str, list[list[float]]]) -> Times:
        """From what was measured: by field, a list of values a repetition."""
        medians = {name: np.median(runs, axis=0).tolist() for name, runs in repeated.items()}
        return cls(**medians)

    @classmethod
    def of_all(cls, parts: Sequence[Times]) -> Times:
        """Those of many cases."""
        names = [one.name for one in fields(cls)]
        return cls(**{name: [t for one in parts for t in getattr(one, name)] for name in names})

    def figures(self) -> Figures:
        """By name, in the order of the table's columns."""
        found: Figures = {
            name: float(np.median(getattr(self, name)))
            for name in ("compile_ms", "first_text_ms", "served_ms")
        }
        for kind in ("request", "cold", "warm"):
            for share in (50, 99):
                times = getattr(self, f"{kind}_us")
                found[f"{kind}_p{share}_us"] = float(np.percentile(times, share))
        return found | {"accept_p50_us": float(np.median(self.accept_us))}


def figures_of(name: str, times: Mapping[str, Times]) -> Figures:
    """Those of each engine for a case or a group of them, and ours over the best of the others'."""
    by_engine = {engine: one.figures() for engine, one in times.items()}
    found: Figures = {
        f"{name}_{engine}_{key}": value
        for engine, own in by_engine.items()
        for key, value in own.items()
    }
    ours = by_engine[OURS]
    for key in ours:
        if not key.startswith("accept"):
            best = min(own[key] for engine, own in by_engine.items() if engine != OURS)
            found[f"{name}_vs_best_{key}"] = ours[key] / best
    return found


_TITLES = ["compile ms", "first text", "served ms"]
_TITLES += ["request p50", "p99 us", "cold p50", "p99 us", "warm p50", "p99 us", "accept us"]
HEAD = f"{'':26}" + "".join(f"{title:>12}" for title in _TITLES)
"""What the columns of `lines` are."""


def lines(name: str, times: Mapping[str, Times]) -> str:
    """A line of the table for each engine."""
    return "\n".join(
        f"{name:16}{engine:>10}" + "".join(f"{value:12.2f}" for value in one.figures().values())
        for engine, one in times.items()
    )
