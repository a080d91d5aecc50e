"""Minimizing without arrays: what `minimize.py` does, faster for automata of few edges."""

from __future__ import annotations

from collections.abc import Collection

from phloem.grammar.dfa.budget import Budget
from phloem.grammar.dfa.plain import Plain, Rows, numbered
from phloem.grammar.dfa.table import few_distances, few_heights


def small_minimal(plain: Plain, budget: Budget) -> Plain | None:
    """The trimmed, minimal, canonically numbered automaton of the same language; None if empty.

    Raises:
        ConstraintTooComplex: if the budget is spent.
    """
    blocks = few_equivalent(plain.rows, plain.accepting, budget)
    return None if blocks[0] < 0 else canonical(plain, blocks)


def few_equivalent(rows: Rows, accepting: list[bool], budget: Budget) -> list[int]:
    """What `minimize.equivalent` tells."""
    sources = sources_of_rows(rows)
    nearest = few_distances(accepting, sources)
    if min(nearest) < 0:
        rows = [[t if t >= 0 and nearest[t] >= 0 else -1 for t in row] for row in rows]
        sources = sources_of_rows(rows)
    longest = few_heights(sources)
    blocks = [-1] * (len(rows) + 1)
    block_of = blocks.__getitem__
    # What nothing of unlimited length can follow is known once what follows it is.
    known: dict[tuple[int, ...], int] = {}
    endless = []
    for state in sorted(range(len(rows)), key=longest.__getitem__):
        if longest[state] < 0:
            endless.append(state)
        elif nearest[state] >= 0:
            key = (accepting[state], *map(block_of, rows[state]))
            blocks[state] = known.setdefault(key, len(known))
    if endless:
        _refine(rows, sources, nearest, blocks, endless, len(known), budget)
    return blocks


def _refine(
    rows: Rows,
    sources: list[list[int]],
    nearest: list[int],
    blocks: list[int],
    endless: list[int],
    count: int,
    budget: Budget,
) -> None:
    """Write the blocks of states behind which there is a cycle; new ones are from `count` on.

    Moore's refinement that looks again only at states of which a successor has changed blocks.
    The largest part of a block keeps its number, so a state changes a logarithmic number of times.
    """
    first: dict[int, int] = {}
    members: dict[int, set[int]] = {}
    for state in endless:
        block = first.setdefault(nearest[state], count + len(first))
        blocks[state] = block
        members.setdefault(block, set()).add(state)
    count += len(first)
    touched = set(endless)
    while touched:
        budget.check(0)
        by_block: dict[int, list[int]] = {}
        for state in touched:
            by_block.setdefault(blocks[state], []).append(state)
        parts: list[tuple[int, list[list[int]]]] = []
        for block, states in by_block.items():
            whole = members[block]
            if len(whole) == 1:
                continue
            groups = _groups(rows, blocks, states, whole)
            if len(groups) > 1:
                parts.append((block, sorted(groups, key=len)))
        touched = set()
        for block, split in parts:
            for states in split[:-1]:
                members[block].difference_update(states)
                members[count] = set(states)
                for state in states:
                    blocks[state] = count
                    touched.update(sources[state])
                count += 1


def _groups(
    rows: Rows, blocks: list[int], states: list[int], whole: set[int]
) -> Collection[list[int]]:
    """The states of a block that lead to the same blocks, where `states` alone may have changed."""
    block_of = blocks.__getitem__
    groups: dict[tuple[int, ...], list[int]] = {}
    for state in states:
        groups.setdefault(tuple(map(block_of, rows[state])), []).append(state)
    if len(states) < len(whole):
        # The others have not been told apart: one of them speaks for all.
        others = list(whole.difference(states))
        groups.setdefault(tuple(map(block_of, rows[others[0]])), []).extend(others)
    return groups.values()


def sources_of_rows(rows: Rows) -> list[list[int]]:
    """`sources_of` a table, by its rows."""
    sources: list[list[int]] = [[] for _ in rows]
    for state, row in enumerate(rows):
        for target in {*row}:
            if target >= 0:
                sources[target].append(state)
    return sources


def canonical(plain: Plain, blocks: list[int]) -> Plain:
    """States numbered as a search in the order of bytes meets them, classes in that order too."""
    rows, accepting, classes = plain
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
    ends = [accepting[state] for state in representatives]
    return numbered(following, ends, columns, list(classes))
