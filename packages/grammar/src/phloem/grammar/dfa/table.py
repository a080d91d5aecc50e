"""Tables of byte automata as arrays, and the graph searches that everything on them shares."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from phloem.grammar.dfa.budget import Budget

Ints = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.uint8]

_DEFAULT = Budget()


class Table(NamedTuple):
    """A deterministic automaton, possibly neither trimmed nor minimal; its start is state 0.

    Bytes that no state tells apart share a class, which keeps tables small.
    """

    next: Ints
    """[states, classes]; -1 where that class is not allowed."""
    accepting: Bools
    """[states]"""
    classes: Bytes
    """[256]: the class of each byte."""


class Predecessors:
    """The edges of a table backwards: for sets of states, the sources of edges into them."""

    def __init__(self, next_states: Ints) -> None:
        states, classes = next_states.shape
        flat = next_states.ravel()
        edges = np.flatnonzero(flat >= 0)
        targets = flat[edges]
        self._sources = (edges // max(classes, 1))[np.argsort(targets, kind="stable")]
        self._counts = np.bincount(targets, minlength=states)
        self._starts = np.cumsum(self._counts) - self._counts

    def of(self, states: Longs) -> Longs:
        """The source of every edge into one of `states`, once per edge."""
        sources: Longs = self._sources[spans(self._starts[states], self._counts[states])]
        return sources


def spans(starts: Longs, counts: Longs) -> Longs:
    """The ranges `starts[i] : starts[i] + counts[i]`, one behind the other."""
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    return np.arange(total) + np.repeat(starts - ends + counts, counts)


def distances(table: Table, budget: Budget = _DEFAULT) -> Ints:
    """The fewest bytes to an accepting state, [states]; -1 where none can be reached."""
    if has_few_edges(table):
        return np.array(few_distances(table.accepting.tolist(), sources_of(table.next)), np.int32)
    predecessors = Predecessors(table.next)
    result = np.full(len(table.accepting), -1, np.int32)
    level, depth = np.flatnonzero(table.accepting), 0
    while len(level):
        budget.check(0)
        result[level] = depth
        sources_met = predecessors.of(level)
        level, depth = np.unique(sources_met[result[sources_met] < 0]), depth + 1
    return result


def heights(table: Table, budget: Budget = _DEFAULT) -> Ints:
    """The most bytes that can follow a state, [states]; -1 where there is no such limit."""
    if (
        table.next.size <= _MANY_EDGES
    ):  # levels are often narrow, and there may be as many as states
        return np.array(few_heights(sources_of(table.next)), np.int32)
    predecessors = Predecessors(table.next)
    result = np.full(len(table.accepting), -1, np.int32)
    open_edges = (table.next >= 0).sum(axis=1)
    level, depth = np.flatnonzero(open_edges == 0), 0
    while len(level):
        budget.check(0)
        result[level] = depth
        sources, counts = np.unique(predecessors.of(level), return_counts=True)
        open_edges[sources] -= counts
        level, depth = sources[open_edges[sources] == 0], depth + 1
    return result


# The same without arrays: faster where there are few edges, and where levels are narrow.


def has_few_edges(table: Table) -> bool:
    """Whether lists are faster than arrays."""
    return table.next.size <= _FEW_EDGES


def sources_of(next_states: Ints) -> list[list[int]]:
    """By state: the sources of edges into it, each once."""
    states, classes = next_states.shape
    flat = next_states.ravel()
    edges = np.flatnonzero(flat >= 0)
    pairs = np.unique(flat[edges].astype(np.int64) * states + edges // max(classes, 1))
    targets, sources = pairs // max(states, 1), (pairs % max(states, 1)).tolist()
    ends = np.cumsum(np.bincount(targets, minlength=states)).tolist()
    return [sources[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]


def few_distances(accepting: list[bool], sources: list[list[int]]) -> list[int]:
    """`distances` of a table by its sources."""
    result = [0 if accepts else -1 for accepts in accepting]
    found = [state for state, accepts in enumerate(accepting) if accepts]
    for state in found:
        further = result[state] + 1
        for source in sources[state]:
            if result[source] < 0:
                result[source] = further
                found.append(source)
    return result


def few_heights(sources: list[list[int]]) -> list[int]:
    """`heights` of a table by its sources."""
    open_targets = [0] * len(sources)
    for into in sources:
        for source in into:
            open_targets[source] += 1
    found = [state for state, count in enumerate(open_targets) if not count]
    result = [-1] * len(sources)
    for state in found:
        result[state] = 0
    for state in found:  # by ascending height, so the last target of a source is its highest
        for source in sources[state]:
            open_targets[source] -= 1
            if not open_targets[source]:
                result[source] = result[state] + 1
                found.append(source)
    return result


_FEW_EDGES = 1 << 16
_MANY_EDGES = 1 << 20
