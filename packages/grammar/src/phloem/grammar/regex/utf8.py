"""From an automaton over classes of characters to one over the bytes of UTF-8."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from phloem.grammar.dfa.budget import Budget
from phloem.grammar.dfa.literals import of_edge_arrays
from phloem.grammar.dfa.table import Bools, Ints, Table
from phloem.grammar.regex.charset import CharSet

Labelled = tuple[tuple[int, int, int], ...]
"""Disjoint ranges of code points with a label each, ascending."""

# The code points of each length, the bits of the lead byte, and the bytes that follow it.
_LENGTHS = (
    (0, 0x7F, 0, 0),
    (0x80, 0x7FF, 0xC0, 1),
    (0x800, 0xD7FF, 0xE0, 2),
    (0xE000, 0xFFFF, 0xE0, 2),
    (0x10000, 0x10FFFF, 0xF0, 3),
)


class Template(NamedTuple):
    """The bytes of labelled characters, as edges between nodes; node 0 is before a character."""

    sources: Ints
    firsts: Ints
    lasts: Ints
    targets: Ints
    """A node, or -1 - label: the character is complete."""
    nodes: int


def encoded(rows: Ints, accepting: Bools, classes: Sequence[CharSet], budget: Budget) -> Table:
    """The automaton over bytes of one over classes: rows [states, classes], -1 for dead.

    States with the same pattern of targets share a template, which is filled in with theirs.
    """
    plans = [_plan(row, classes) for row in rows]
    sizes = np.array([plan[0].nodes for plan in plans], np.int64)
    budget.check(int(sizes.sum()))
    bases = (np.cumsum(sizes) - sizes).astype(np.int32)
    parts = []
    for base, (template, targets) in zip(bases.tolist(), plans, strict=True):
        following = np.where(
            template.targets >= 0,
            template.targets + base,
            bases[targets[-1 - np.minimum(template.targets, -1)]],
        )
        parts.append((template.sources + base, template.firsts, template.lasts, following))
    sources, firsts, lasts, ends = (
        np.concatenate(column).astype(np.int32) for column in zip(*parts, strict=True)
    )
    accepts = np.zeros(int(sizes.sum()), bool)
    accepts[bases] = accepting
    return of_edge_arrays(sources, firsts, lasts, ends, accepts)


def _plan(row: Ints, classes: Sequence[CharSet]) -> tuple[Template, Ints]:
    """The template of a state, and the target of each of its labels."""
    live = np.flatnonzero(row >= 0).tolist()
    labels: dict[int, int] = {}
    pattern = tuple((column, labels.setdefault(int(row[column]), len(labels))) for column in live)
    ranges = sorted(
        (first, last, label) for column, label in pattern for first, last in classes[column]
    )
    return _template(_merged(ranges)), np.array([*labels, 0], np.int32)


def _merged(ranges: Iterable[tuple[int, int, int]]) -> Labelled:
    merged: list[tuple[int, int, int]] = []
    for first, last, label in ranges:
        if merged and merged[-1][1] == first - 1 and merged[-1][2] == label:
            merged[-1] = (merged[-1][0], last, label)
        else:
            merged.append((first, last, label))
    return tuple(merged)


@lru_cache(maxsize=256)
def _template(ranges: Labelled) -> Template:
    edges: list[tuple[int, int, int, int]] = []
    nodes: dict[tuple[Labelled, int], int] = {}
    pending: list[tuple[Labelled, int, int]] = []

    def node(inner: Labelled, following: int) -> int:
        number = nodes.setdefault((inner, following), len(nodes) + 1)
        if number == len(nodes) and (not pending or pending[-1][2] < number):
            pending.append((inner, following, number))
        return number

    def add(source: int, lead: int, following: int, inner: Labelled) -> None:
        for first, last, rest in _blocks(inner, 6 * following):
            target = node(rest, following) if following else -1 - rest[0][2]
            edges.append((source, lead | first, lead | last, target))

    for low, high, lead, following in _LENGTHS:
        inside = tuple(
            (max(first, low), min(last, high), label)
            for first, last, label in ranges
            if first <= high and last >= low
        )
        add(0, lead, following, inside)
    for inner, following, number in pending:
        add(number, 0x80, following - 1, inner)
    columns = np.array(edges, np.int32).reshape(-1, 4).T
    return Template(columns[0], columns[1], columns[2], columns[3], len(nodes) + 1)


def _blocks(ranges: Labelled, bits: int) -> list[tuple[int, int, Labelled]]:
    """Ranges cut into blocks of 2**bits: runs (first, last block, what is within each)."""
    size = 1 << bits
    runs: list[tuple[int, int, Labelled]] = []
    for first, last, label in ranges:
        while first <= last:
            block = first >> bits
            begin = block << bits
            if first == begin and last >= begin + size - 1:
                final = ((last + 1) >> bits) - 1
                runs.append((block, final, ((0, size - 1, label),)))
                first = (final + 1) << bits
                continue
            end = min(last, begin + size - 1)
            piece = (first - begin, end - begin, label)
            if runs and runs[-1][1] == block:
                runs[-1] = (block, block, (*runs[-1][2], piece))
            else:
                runs.append((block, block, (piece,)))
            first = end + 1
    return runs
