"""Minimizing without arrays: what `minimize.py` does, faster for automata of few edges."""

from __future__ import annotations

import numpy as np

from phloem.grammar.dfa.budget import Budget
from phloem.grammar.dfa.table import Table, few_distances, few_heights

Rows = list[list[int]]


def small_minimal(table: Table, budget: Budget) -> Table | None:
    """The trimmed, minimal, canonically numbered table of the same language; None if empty.

    Raises:
        ConstraintTooComplex: if the budget is spent.
    """
    rows: Rows = table.next.tolist()
    accepting: list[bool] = table.accepting.tolist()
    sources = _sources(rows)
    nearest = few_distances(accepting, sources)
    if nearest[0] < 0:
        return None
    if min(nearest) < 0:
        # States of no text at all stay where they are; nothing leads to them any more.
        rows = [[-1 if t >= 0 and nearest[t] < 0 else t for t in row] for row in rows]
        sources = _sources(rows)
    blocks = _equivalent(rows, nearest, few_heights(sources), budget)
    return _canonical(rows, accepting, blocks, table.classes.tolist())


def _sources(rows: Rows) -> list[list[int]]:
    """`sources_of` a table, by its rows."""
    sources: list[list[int]] = [[] for _ in rows]
    for state, row in enumerate(rows):
        for target in {*row}:
            if target >= 0:
                sources[target].append(state)
    return sources


def _equivalent(rows: Rows, nearest: list[int], longest: list[int], budget: Budget) -> list[int]:
    """The block of each state, and -1 at the end: Moore's refinement, as in `minimize.py`."""
    numbers: dict[object, int] = {}
    blocks = [numbers.setdefault(pair, len(numbers)) for pair in zip(nearest, longest, strict=True)]
    count = 0
    while count != len(numbers):
        budget.check(0)
        count = len(numbers)
        blocks.append(-1)  # where -1, the dead state, is looked up
        block_of = blocks.__getitem__
        numbers = {}
        blocks = [
            numbers.setdefault((block, *map(block_of, row)), len(numbers))
            for block, row in zip(blocks, rows, strict=False)
        ]
    blocks.append(-1)
    return blocks


def _canonical(rows: Rows, accepting: list[bool], blocks: list[int], classes: list[int]) -> Table:
    """States numbered as a search in the order of bytes meets them, classes in that order too."""
    columns = list(dict.fromkeys(classes))
    numbers = {blocks[0]: 0, -1: -1}
    representatives = [0]
    following: Rows = []
    for state in representatives:
        row = rows[state]
        line = []
        for column in columns:
            target = row[column]
            block = blocks[target]
            number = numbers.get(block)
            if number is None:
                number = numbers[block] = len(representatives)
                representatives.append(target)
            line.append(number)
        following.append(line)
    merged: dict[tuple[int, ...], int] = {}
    by_column = {
        column: merged.setdefault(values, len(merged))
        for column, values in zip(columns, zip(*following, strict=True), strict=True)
    }
    return Table(
        np.array(list(merged), np.int32).T.copy(),
        np.array([accepting[state] for state in representatives], bool),
        np.array([by_column[column] for column in classes], np.uint8),
    )
