"""Determinization: concatenation and repetition, whose automata are in several places at once."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from phloem.grammar.dfa.budget import Budget
from phloem.grammar.dfa.table import Ints, Table

Places = frozenset[int]
State = TypeVar("State", bound=Hashable)


def explore(
    start: State,
    successors: Callable[[State], Mapping[int, State]],
    accepts: Callable[[State], bool],
    width: int,
    budget: Budget,
) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """Number the states that can be reached; their rows [states, width] and which accept.

    `successors` maps columns to states; columns left out are dead.

    Raises:
        ConstraintTooComplex: if the budget is spent.
    """
    numbers = {start: 0}
    pending = [start]
    sources: list[int] = []
    columns: list[int] = []
    targets: list[int] = []
    for source, state in enumerate(pending):
        budget.check(len(pending))
        for column, target in successors(state).items():
            number = numbers.setdefault(target, len(pending))
            if number == len(pending):
                pending.append(target)
            sources.append(source)
            columns.append(column)
            targets.append(number)
    budget.check(len(pending))
    rows = np.full((len(pending), width), -1, np.int32)
    rows[sources, columns] = targets
    return rows, np.array([accepts(state) for state in pending], bool)


def concatenation(left: Table, right: Table, budget: Budget) -> Table:
    """A text of `left`, then one of `right`. Neither may be empty."""
    classes, one, two = _joined(left, right)
    shift = len(one)
    rows = one + [[target + shift if target >= 0 else -1 for target in row] for row in two]
    enters = left.accepting.tolist() + [False] * len(two)
    accepting = [False] * shift + right.accepting.tolist()

    def closed(places: Iterable[int]) -> Places:
        found = set(places)
        if any(enters[place] for place in found):
            found.add(shift)
        return frozenset(found)

    return _determinized(rows, closed, accepting, classes, budget)


def repetition(table: Table, fewest: int, most: int | None, budget: Budget) -> Table:
    """Between `fewest` and `most` texts, one behind the other. The table may not be empty."""
    size = len(table.accepting)
    ends = table.accepting.tolist()
    if ends[0]:
        fewest = 0
    copies = most if most is not None else max(fewest, 1)
    budget.check(size * copies + 1)
    once = table.next.tolist()
    rows = [
        [target + copy * size if target >= 0 else -1 for target in row]
        for copy in range(copies)
        for row in once
    ]
    accepting = [end and copy + 1 >= fewest for copy in range(copies) for end in ends]
    # The text without any repetition is a state of its own, after which the first one begins.
    begin = len(rows)
    rows.append(rows[0] if copies else [-1] * table.next.shape[1])
    accepting.append(fewest == 0)

    def closed(places: Iterable[int]) -> Places:
        found = set(places)
        pending = [place for place in found if place != begin]
        while pending:
            copy, state = divmod(pending.pop(), size)
            if not ends[state]:
                continue
            following = copy + 1 if copy + 1 < copies else copy if most is None else None
            if following is not None and following * size not in found:
                found.add(following * size)
                pending.append(following * size)
        return frozenset(found)

    return _determinized(rows, closed, accepting, table.classes, budget, begin)


def _determinized(
    rows: list[list[int]],
    closed: Callable[[Iterable[int]], Places],
    accepting: list[bool],
    classes: npt.NDArray[np.uint8],
    budget: Budget,
    start: int = 0,
) -> Table:
    edges = [[(column, target) for column, target in enumerate(row) if target >= 0] for row in rows]

    def successors(places: Places) -> dict[int, Places]:
        found: dict[int, set[int]] = {}
        for place in places:
            for column, target in edges[place]:
                found.setdefault(column, set()).add(target)
        return {column: closed(targets) for column, targets in found.items()}

    next_states, accepts = explore(
        closed([start]),
        successors,
        lambda places: any(accepting[place] for place in places),
        len(rows[0]),
        budget,
    )
    return Table(next_states, accepts, classes)


def _joined(
    left: Table, right: Table
) -> tuple[npt.NDArray[np.uint8], list[list[int]], list[list[int]]]:
    """Classes that both agree on, and the rows of both over them."""
    pairs = left.classes.astype(np.int32) * 256 + right.classes
    _, firsts, classes = np.unique(pairs, return_index=True, return_inverse=True)
    one = left.next[:, left.classes[firsts]].tolist()
    two = right.next[:, right.classes[firsts]].tolist()
    return classes.reshape(-1).astype(np.uint8), one, two
