"""Combinations of two languages without arrays: what `product.py` does, faster for few states."""

from __future__ import annotations

from phloem.grammar.dfa.budget import Budget
from phloem.grammar.dfa.plain import Plain, Rows, joined_classes
from phloem.grammar.dfa.product import Combination


def small_product(left: Plain, right: Plain, combination: Combination, budget: Budget) -> Plain:
    """What `product` makes, from automata neither of which is empty.

    Raises:
        ConstraintTooComplex: if the budget is spent.
    """
    columns, classes = joined_classes(left.classes, right.classes)
    # The last row is where the dead state -1 is looked up.
    left_rows = [*left.rows, [-1] * len(left.rows[0])]
    right_rows = [*right.rows, [-1] * len(right.rows[0])]
    lives = combination.lives
    # Whether anything can come of a pair of which only the left one, or the right one, is alive.
    left_alone, right_alone = lives(True, False), lives(False, True)
    pending = [(0, 0)]
    numbers = {(0, 0): 0, (-1, -1): -1}
    rows: Rows = []
    for one, two in pending:
        if not len(rows) & 255:
            budget.check(len(pending))
        left_row, right_row = left_rows[one], right_rows[two]
        row = []
        for left_column, right_column in columns:
            pair = left_row[left_column], right_row[right_column]
            number = numbers.get(pair)
            if number is None:
                dead = (pair[0] < 0 and not right_alone) or (pair[1] < 0 and not left_alone)
                number = numbers[pair] = -1 if dead else len(pending)
                if not dead:
                    pending.append(pair)
            row.append(number)
        rows.append(row)
    budget.check(len(rows))
    left_ends, right_ends = [*left.accepting, False], [*right.accepting, False]
    accepts = combination.accepts
    accepting = [accepts(left_ends[one], right_ends[two]) for one, two in pending]
    return Plain(rows, accepting, classes)


def small_meet(left: Plain, right: Plain, budget: Budget) -> bool:
    """Whether two languages, neither of them empty, have a text in common.

    Raises:
        ConstraintTooComplex: if the budget is spent.
    """
    columns, _ = joined_classes(left.classes, right.classes)
    pending = [(0, 0)]
    met = {(0, 0)}
    for number, (one, two) in enumerate(pending):
        if left.accepting[one] and right.accepting[two]:
            return True
        if not number & 255:
            budget.check(len(pending))
        left_row, right_row = left.rows[one], right.rows[two]
        for left_column, right_column in columns:
            pair = left_row[left_column], right_row[right_column]
            if pair[0] >= 0 and pair[1] >= 0 and pair not in met:
                met.add(pair)
                pending.append(pair)
    return False
