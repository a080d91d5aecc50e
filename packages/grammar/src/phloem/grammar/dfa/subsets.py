"""Determinization: concatenation and repetition, whose automata are in several places at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from phloem.grammar.dfa.budget import Budget
from phloem.grammar.dfa.plain import Plain, Rows, joined_classes

Places = frozenset[int]


def concatenation(left: Plain, right: Plain, budget: Budget) -> Plain:
    """A text of `left`, then one of `right`. Neither may be empty."""
    columns, classes = joined_classes(left.classes, right.classes)
    shift = len(left.rows)
    rows = [[row[column] for column, _ in columns] for row in left.rows]
    for row in right.rows:
        targets = [row[column] for _, column in columns]
        rows.append([target + shift if target >= 0 else -1 for target in targets])
    enters = left.accepting + [False] * len(right.rows)
    accepting = [False] * shift + right.accepting

    def closed(places: Iterable[int]) -> Places:
        found = set(places)
        if any(enters[place] for place in found):
            found.add(shift)
        return frozenset(found)

    return _determinized(rows, closed, accepting, classes, budget)


def repetition(once: Plain, fewest: int, most: int | None, budget: Budget) -> Plain:
    """Between `fewest` and `most` texts, one behind the other. `once` may not be empty."""
    size, ends = len(once.rows), once.accepting
    if ends[0]:
        fewest = 0
    copies = most if most is not None else max(fewest, 1)
    budget.check(size * copies + 1)
    rows = [
        [target + copy * size if target >= 0 else -1 for target in row]
        for copy in range(copies)
        for row in once.rows
    ]
    accepting = [end and copy + 1 >= fewest for copy in range(copies) for end in ends]
    # The text without any repetition is a state of its own, after which the first one begins.
    begin = len(rows)
    rows.append(rows[0] if copies else [-1] * len(once.rows[0]))
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

    return _determinized(rows, closed, accepting, once.classes, budget, begin)


def _determinized(
    rows: Rows,
    closed: Callable[[Iterable[int]], Places],
    accepting: list[bool],
    classes: bytes,
    budget: Budget,
    start: int = 0,
) -> Plain:
    edges = [[(column, target) for column, target in enumerate(row) if target >= 0] for row in rows]
    width = len(rows[0])
    pending = [closed([start])]
    numbers = {pending[0]: 0}
    found: Rows = []
    for places in pending:
        budget.check(len(pending))
        targets: dict[int, list[int]] = {}
        for place in places:
            for column, target in edges[place]:
                targets.setdefault(column, []).append(target)
        row = [-1] * width
        for column, reached in targets.items():
            state = closed(reached)
            number = row[column] = numbers.setdefault(state, len(pending))
            if number == len(pending):
                pending.append(state)
        found.append(row)
    budget.check(len(pending))
    accepts = [any(accepting[place] for place in places) for places in pending]
    return Plain(found, accepts, classes)
