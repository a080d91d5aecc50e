"""Automata from edges over ranges of bytes, and of texts by their length."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import numpy as np

from phloem.grammar.dfa.budget import Budget
from phloem.grammar.dfa.plain import Plain
from phloem.grammar.dfa.table import Table

# Well-formed UTF-8 (Unicode 15, table 3-7): from state 0, which is between characters, the bytes
# that lead to a state, and from there the bytes that lead on.
_UTF8 = (
    (0, 0x00, 0x7F, 0),
    (0, 0xC2, 0xDF, 1),
    (0, 0xE0, 0xE0, 2),
    (0, 0xE1, 0xEC, 3),
    (0, 0xED, 0xED, 4),
    (0, 0xEE, 0xEF, 3),
    (0, 0xF0, 0xF0, 5),
    (0, 0xF1, 0xF3, 6),
    (0, 0xF4, 0xF4, 7),
    (1, 0x80, 0xBF, 0),
    (2, 0xA0, 0xBF, 1),
    (3, 0x80, 0xBF, 1),
    (4, 0x80, 0x9F, 1),
    (5, 0x90, 0xBF, 3),
    (6, 0x80, 0xBF, 3),
    (7, 0x80, 0x8F, 3),
)
_WITHIN = 8


def of_edges(edges: Iterable[tuple[int, int, int, int]], accepting: list[bool]) -> Plain:
    """An automaton from edges (source, first byte, last byte, target) that do not overlap."""
    edges = list(edges)
    cuts = sorted({0, 256, *[edge[1] for edge in edges], *[edge[2] + 1 for edge in edges]})
    places = {cut: place for place, cut in enumerate(cuts)}
    dead = [-1] * (len(cuts) - 1)
    rows = [dead.copy() for _ in accepting]
    for source, first, last, target in edges:
        begin, end = places[first], places[last + 1]
        rows[source][begin:end] = [target] * (end - begin)
    classes = b"".join(
        bytes([place]) * (end - begin) for place, (begin, end) in enumerate(pairwise(cuts))
    )
    return Plain(rows, accepting, classes)


def of_edge_arrays(
    sources: np.ndarray[tuple[int], np.dtype[np.int32]],
    firsts: np.ndarray[tuple[int], np.dtype[np.int32]],
    lasts: np.ndarray[tuple[int], np.dtype[np.int32]],
    targets: np.ndarray[tuple[int], np.dtype[np.int32]],
    accepting: np.ndarray[tuple[int], np.dtype[np.bool_]],
) -> Table:
    """The same in arrays, from one array per column: all [edges], int32."""
    bounds = np.zeros(257, bool)
    bounds[firsts] = True
    bounds[lasts + 1] = True
    classes = (np.cumsum(bounds[:256]) - bounds[0]).astype(np.int32)
    counts = classes[lasts] - classes[firsts] + 1
    offsets = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    rows = np.full((len(accepting), int(classes[-1]) + 1), -1, np.int32)
    rows[np.repeat(sources, counts), np.repeat(classes[firsts], counts) + offsets] = np.repeat(
        targets, counts
    )
    return Table(rows, accepting, classes.astype(np.uint8))


def of_lengths(fewest: int, most: int | None, budget: Budget) -> Table:
    """Well-formed UTF-8 of that many characters; not trimmed where `most` < `fewest`."""
    counts = fewest if most is None else max(most, fewest)
    budget.check((counts + 1) * _WITHIN)
    loops = most is None
    accepting = np.zeros((counts + 1) * _WITHIN, bool)
    last = counts if most is None else most
    accepting[fewest * _WITHIN : last * _WITHIN + 1 : _WITHIN] = True
    pattern = np.array(_UTF8, np.int32)
    copies = np.arange(counts + 1, dtype=np.int32)[:, None]
    sources = pattern[:, 0] + copies * _WITHIN
    targets = pattern[:, 3] + (copies + (pattern[:, 3] == 0)) * _WITHIN
    if loops:
        targets = np.where(targets > counts * _WITHIN + _WITHIN - 1, counts * _WITHIN, targets)
    inside = (targets < len(accepting)).ravel()
    firsts, lasts = (np.broadcast_to(pattern[:, column], sources.shape) for column in (1, 2))
    return of_edge_arrays(
        sources.ravel()[inside],
        firsts.ravel()[inside],
        lasts.ravel()[inside],
        targets.ravel()[inside],
        accepting,
    )
