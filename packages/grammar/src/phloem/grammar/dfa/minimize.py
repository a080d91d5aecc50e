"""The minimal table of a language, in the one numbering that makes equal languages equal arrays."""

from __future__ import annotations

import numpy as np

from phloem.grammar.dfa.budget import Budget
from phloem.grammar.dfa.minimize_small import few_equivalent, small_minimal
from phloem.grammar.dfa.plain import Plain, Rows, plain_of, table_of
from phloem.grammar.dfa.table import Bools, Ints, Longs, Table, distances, heights

EMPTY = Table(np.zeros((0, 1), np.int32), np.zeros(0, bool), np.zeros(256, np.uint8))
"""The empty language: no state is live, so there is none."""

_SMALL = 1 << 14
"""So few cells of a table are minimized faster without arrays."""
_HASHES = np.uint64(0x9E3779B97F4A7C15)


def minimal(automaton: Table | Plain, budget: Budget) -> Table | Plain:
    """The trimmed, minimal, canonically numbered form of the same language; `EMPTY` if empty.

    Raises:
        ConstraintTooComplex: if the budget is spent.
    """
    states = len(automaton.accepting)
    budget.check(states)
    if not states:
        return EMPTY
    if isinstance(automaton, Plain):
        if states * len(automaton.rows[0]) > _SMALL:
            return _minimal(table_of(automaton), budget)
        return small_minimal(automaton, budget) or EMPTY
    if automaton.next.size > _SMALL:
        return _minimal(automaton, budget)
    return small_minimal(plain_of(automaton), budget) or EMPTY


def equivalent(rows: Rows, accepting: list[bool], budget: Budget) -> list[int]:
    """The block of each state: equal blocks accept the same continuations, and -1 accepts none.

    One more item at the end, -1, is where the dead state -1 is looked up.

    Raises:
        ConstraintTooComplex: if the budget is spent.
    """
    if len(rows) * len(rows[0]) <= _SMALL:
        return few_equivalent(rows, accepting, budget)
    table = Table(np.array(rows, np.int32), np.array(accepting), np.zeros(256, np.uint8))
    nearest = distances(table, budget)
    live = nearest >= 0
    blocks = np.full(len(rows) + 1, -1, np.int32)
    if live[0]:
        blocks[:-1][live] = _equivalent(_only(table, live), nearest[live], budget)
    return blocks.tolist()


def _minimal(table: Table, budget: Budget) -> Table:
    nearest = distances(table, budget)
    if nearest[0] < 0:
        return EMPTY
    live = nearest >= 0
    if not live.all():
        table, nearest = _only(table, live), nearest[live]
    blocks = _equivalent(table, nearest, budget)
    _, firsts = np.unique(blocks, return_index=True)
    extended = np.append(blocks, -1)
    merged = Table(extended[table.next[firsts]], table.accepting[firsts], table.classes)
    return _canonical(merged, int(blocks[0]), budget)


def _only(table: Table, kept: Bools) -> Table:
    """The table of some states, the start among them; edges to others are dead."""
    numbers = np.append(np.where(kept, np.cumsum(kept) - 1, -1), -1).astype(np.int32)
    return Table(numbers[table.next[kept]], table.accepting[kept], table.classes)


def _equivalent(table: Table, nearest: Ints, budget: Budget) -> Ints:
    """The block of each state, [states]: equal blocks accept the same continuations.

    Moore's partition refinement over hashes of rows. It begins with the shortest (`nearest`) and
    the longest continuation of each state: equivalent states agree on both, and counted
    repetitions, which would take a round per count, are told apart at once.
    """
    longest = heights(table, budget)
    features = (nearest.astype(np.int64) + 1) + (longest.astype(np.int64) + 1) * (1 << 32)
    first: Longs = np.unique(features, return_inverse=True)[1].reshape(-1)
    seed = 1
    while True:
        blocks = _refined(table.next, first, seed, budget)
        if _is_congruence(table, blocks):
            return blocks.astype(np.int32)
        seed += 1  # two hashes were equal by accident


def _refined(next_states: Ints, blocks: Longs, seed: int, budget: Budget) -> Longs:
    factors = _mixed(np.arange(next_states.shape[1] + 1, dtype=np.uint64) + np.uint64(seed << 20))
    count = int(blocks.max()) + 1
    while True:
        budget.check(0)
        labels = _mixed(np.append(blocks, count).astype(np.uint64) + np.uint64(seed))
        rows = labels[next_states] @ factors[:-1] + labels[:-1] * factors[-1]
        blocks = np.unique(rows, return_inverse=True)[1].reshape(-1)
        previous, count = count, int(blocks.max()) + 1
        if count == previous:
            return blocks


def _mixed(
    values: np.ndarray[tuple[int], np.dtype[np.uint64]],
) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    """Well-spread odd 64-bit hashes of numbers (the finalizer of splitmix64)."""
    mixed = values * _HASHES
    mixed ^= mixed >> np.uint64(30)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(27)
    mixed *= np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return mixed | np.uint64(1)


def _is_congruence(table: Table, blocks: Longs) -> bool:
    _, firsts = np.unique(blocks, return_index=True)
    of_block = firsts[blocks]
    rows = np.append(blocks, -1)[table.next]
    return bool(
        (rows == rows[of_block]).all() and (table.accepting == table.accepting[of_block]).all()
    )


def _canonical(table: Table, start: int, budget: Budget) -> Table:
    """States numbered as a search in the order of bytes meets them, classes in that order too."""
    _, firsts, ranks = np.unique(table.classes, return_index=True, return_inverse=True)
    order = np.argsort(firsts)
    columns = np.argsort(order)[ranks.reshape(-1)]
    next_states = table.next[:, table.classes[firsts[order]]]
    numbers = np.full(len(next_states) + 1, -1, np.int32)
    numbers[start] = 0
    level = np.array([start])
    found, met = [level], 1
    while len(level):
        budget.check(0)
        targets = next_states[level].ravel()
        targets = targets[targets >= 0]
        targets = targets[numbers[targets] < 0]
        _, places = np.unique(targets, return_index=True)
        level = targets[np.sort(places)]
        numbers[level] = np.arange(met, met + len(level))
        met += len(level)
        found.append(level)
    reached = np.concatenate(found)
    rows = numbers[next_states[reached]]
    _, same = np.unique(np.ascontiguousarray(rows.T), axis=0, return_inverse=True)
    by_byte = same.reshape(-1)[columns]
    _, firsts, merged = np.unique(by_byte, return_index=True, return_inverse=True)
    order = np.argsort(firsts)
    return Table(
        np.ascontiguousarray(rows[:, columns[firsts[order]]], dtype=np.int32),
        table.accepting[reached],
        np.argsort(order)[merged.reshape(-1)].astype(np.uint8),
    )
