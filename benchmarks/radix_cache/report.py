"""What the rounds come to: medians, ratios, whether the systems did the same, and a table."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import Any

from benchmarks.radix_cache.measure import OPERATIONS
from benchmarks.report import Figures

OURS = "phloem"
# Trees may cut a leaf differently, so what is left after the same stream differs by some leaves.
SAME_LEFT = 0.05


def summary(rounds: list[Figures]) -> Figures:
    """Medians over the rounds of one system on one workload; times in microseconds."""
    figures: Figures = {}
    for operation in OPERATIONS:
        tallies = [played["tallies"][operation] for played in rounds]
        if not tallies[0]["calls"]:
            continue
        ns = median(tally["ns"] / tally["calls"] for tally in tallies)
        figures[operation] = {
            "us": ns / 1e3,
            "ops_per_s": 1e9 / ns,
            "tokens_per_s": median(t["tokens"] / t["ns"] * 1e9 for t in tallies),
            "calls": tallies[0]["calls"],
        }
    first = rounds[0]
    return figures | {
        "hit_tokens": sum(first["hits"]),
        "evicted_tokens": first["evicted"],
        "left_tokens": first["left"],
        "sampled": first["sampled_after"] is not None,
    }


def add_totals(systems: dict[str, Figures]) -> None:
    """Milliseconds of a whole stream; where evictions were sampled, their mean for all of them."""
    for figures in systems.values():
        counted = systems[OURS] if figures["sampled"] and OURS in systems else figures
        ops = [operation for operation in OPERATIONS if operation in figures]
        figures["all_ms"] = sum(figures[op]["us"] * counted[op]["calls"] for op in ops) / 1e3


def ratios(systems: dict[str, Figures]) -> dict[str, dict[str, float]]:
    """How many times the throughput of each other system ours has, by operation and over all."""
    if OURS not in systems:
        return {}
    ours = systems[OURS]
    return {
        name: {
            **{op: theirs[op]["us"] / ours[op]["us"] for op in OPERATIONS if op in ours},
            "all": theirs["all_ms"] / ours["all_ms"],
        }
        for name, theirs in systems.items()
        if name != OURS
    }


def differences(played: dict[str, Figures], capacity: int) -> Iterator[str]:
    """Sentences that say where systems did not do the same as the first one."""
    first, *others = played
    for other in others:
        a, b = played[first], played[other]
        if a["tokens_crc"] != b["tokens_crc"]:
            yield f"{other} got other tokens than {first}: nothing of it can be compared"
        ends = [p["sampled_after"] for p in (a, b) if p["sampled_after"] is not None]
        pairs = list(zip(a["hits"], b["hits"]))[: min(ends, default=None)]
        unequal = [i for i, (x, y) in enumerate(pairs) if x != y]
        if unequal:
            at = unequal[0]
            yield (
                f"{other} found other lengths than {first} in {len(unequal)} lookups of "
                f"{len(pairs)}, first in number {at}: {pairs[at][1]} tokens, not {pairs[at][0]}"
            )
        if abs(a["left"] - b["left"]) > SAME_LEFT * capacity:
            yield (
                f"{other} evicted {b['evicted']} tokens and has {b['left']} left; "
                f"{first} {a['evicted']} and {a['left']}"
            )


def table(systems: dict[str, Figures], against: dict[str, dict[str, float]]) -> Iterator[str]:
    """Lines: microseconds per call, and in brackets how many times slower than ours."""
    width = max(18, *map(len, systems))
    yield " " * 9 + "".join(f"{name:>{width}}" for name in systems)
    for row in (*OPERATIONS, "all"):
        cells = []
        for name, figures in systems.items():
            if row not in figures and row != "all":
                cells.append("-")
                continue
            value = figures["all_ms"] if row == "all" else figures[row]["us"]
            mark = "~" if figures["sampled"] and row in ("evict", "all") else ""
            ratio = against.get(name, {}).get(row)
            cells.append(f"{mark}{value:.4g}" + (f" ({ratio:.2g}x)" if ratio else ""))
        unit = "ms" if row == "all" else "us"
        yield f"{row:<7}{unit}" + "".join(f"{cell:>{width}}" for cell in cells)


def sentences(figures: dict[str, Any]) -> Iterator[str]:
    """The small figures, a line each."""
    for name, micro in figures["micro"].items():
        yield (
            f"{name}: {micro['match_16000']:.1f} us to match a ready key of 16,000 in one node, "
            f"{micro['key_16000']:.1f} to make it, {micro['key_16000_from_list']:.0f} from a list"
        )
    for name, sizes in figures["bytes_per_node"].items():
        told = ", ".join(f"{size:.0f} bytes at page size {page}" for page, size in sizes.items())
        yield f"{name}: a node of one page takes {told}"
    yield f"importing phloem.radix_cache: {figures['import_ms']:.0f} ms"
