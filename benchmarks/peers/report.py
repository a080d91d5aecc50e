"""Results as lines of text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.peers.machine import BUSY_CORES
from benchmarks.peers.results import JUDGED_BY, METRICS, Results, Standing, ratios
from phloem.server.bench.figures import Figures

_SHOWN = {"output_tokens_per_s": "output tokens/s"} | {
    f"{kind}_p{percent}_ms": f"{kind.upper()} p{percent}"
    for kind in ("ttft", "itl")
    for percent in (50, 99)
}


def lines(results: Results) -> Iterator[str]:
    """All tables and sentences."""
    standings = results.standings()
    found = ratios(standings, results.entrants)
    for workload in dict.fromkeys(w for s in standings.values() for w in s.figures):
        yield from ("", f"{workload}, medians")
        yield from _workload(workload, standings)
        for ours, rivals in found.get(workload, {}).items():
            for kind, against in rivals.items():
                if against:
                    yield f"  {ours} against the best of {kind}: {_ratios(against)}"
    if standings:
        yield from ("", "start to first answer, and memory of the process tree")
        yield from _servers(standings)
    if results.reference:
        yield f"texts are compared with those of {results.reference}"
    for name, standing in standings.items():
        if not standing.counts:
            equal, of = standing.agreement[JUDGED_BY]
            yield f"{name} does not count: {equal} of {of} texts of {JUDGED_BY} are right"
    for name, why in results.absent.items():
        yield f"{name} is absent: {why}"


def _workload(workload: str, standings: Mapping[str, Standing]) -> Iterator[str]:
    rows: list[Sequence[str]] = [
        ("", "output tok/s", "TTFT p50/p99 ms", "ITL p50/p99 ms", "equal texts", "failed", "")
    ]
    for name, standing in standings.items():
        if (figures := standing.figures.get(workload)) is None:
            continue
        agreement = standing.agreement.get(workload)
        others = standing.others_cores[workload]
        rows.append(
            (
                name if standing.counts else f"({name})",
                f"{figures.output_tokens_per_s:.1f}",
                _pair(figures, "ttft"),
                _pair(figures, "itl"),
                "-" if agreement is None else f"{agreement.equal}/{agreement.of}",
                f"{figures.failed:.0f}",
                f"others used {others:.2f} cores" if others > BUSY_CORES else "",
            )
        )
    yield from _table(rows)


def _servers(standings: Mapping[str, Standing]) -> Iterator[str]:
    rows: list[Sequence[str]] = [("", "start s", "peak RSS MiB", "PSS MiB")]
    for name, standing in standings.items():
        pss = "-" if standing.pss_mib is None else f"{standing.pss_mib:.0f}"
        rows.append((name, f"{standing.startup_s:.1f}", f"{standing.peak_rss_mib:.0f}", pss))
    yield from _table(rows)


def _table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for name, *cells in rows:
        padded = map(str.rjust, cells, widths[1:])
        yield "  ".join((name.ljust(widths[0]), *padded)).rstrip()


def _ratios(against: Mapping[str, Mapping[str, Any]]) -> str:
    return ", ".join(
        f"{_SHOWN[metric.name]} {against[metric.name]['ratio']:.2f}x "
        f"({against[metric.name]['best']})"
        for metric in METRICS
        if metric.name in against
    )


def _pair(figures: Figures, kind: str) -> str:
    values = (getattr(figures, f"{kind}_p{percent}_ms") for percent in (50, 99))
    return "/".join("-" if value is None else f"{value:.0f}" for value in values)
