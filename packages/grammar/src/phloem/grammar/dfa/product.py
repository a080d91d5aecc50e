"""Two automata run side by side: union, intersection and difference."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from phloem.grammar.dfa.budget import Budget
from phloem.grammar.dfa.table import Ints, Table

_Truth: TypeAlias = Any
"""Bools, or one of them."""


@dataclass(frozen=True, slots=True)
class Combination:
    """What a combination of two languages keeps."""

    lives: Callable[[_Truth, _Truth], _Truth]
    """Whether anything can come of a pair of states, by whether each is alive."""
    accepts: Callable[[_Truth, _Truth], _Truth]
    """Whether a pair of states accepts, by whether each does."""


UNION = Combination(operator.or_, operator.or_)
INTERSECTION = Combination(operator.and_, operator.and_)
DIFFERENCE = Combination(lambda one, two: one, operator.gt)


def product(left: Table, right: Table, combination: Combination, budget: Budget) -> Table:
    """The table of a combination of two languages, neither of them empty; not minimal yet.

    Raises:
        ConstraintTooComplex: if the budget is spent.
    """
    pairs = np.unique(
        left.classes.astype(np.int32) * 256 + right.classes, return_index=True, return_inverse=True
    )
    left_next = _with_dead(left.next)[:, left.classes[pairs[1]]]
    right_next = _with_dead(right.next)[:, right.classes[pairs[1]]]
    left_dead, right_dead = len(left.accepting), len(right.accepting)
    width = right_dead + 1
    codes, seen, rows = [0], {0}, []
    level = np.zeros(1, np.int64)
    while len(level):
        one, two = left_next[level // width], right_next[level % width]
        alive = combination.lives(one != left_dead, two != right_dead)
        targets = np.where(alive, one.astype(np.int64) * width + two, -1)
        rows.append(targets)
        new = [code for code in np.unique(targets).tolist() if code >= 0 and code not in seen]
        seen.update(new)
        codes.extend(new)
        budget.check(len(codes))
        level = np.array(new, np.int64)
    numbers = np.array(codes, np.int64)
    order = np.argsort(numbers)
    targets = np.concatenate(rows)
    places = np.searchsorted(numbers[order], np.maximum(targets, 0))
    left_accepts = np.append(left.accepting, False)[numbers // width]
    right_accepts = np.append(right.accepting, False)[numbers % width]
    return Table(
        np.where(targets >= 0, order[places], -1).astype(np.int32),
        combination.accepts(left_accepts, right_accepts),
        pairs[2].reshape(-1).astype(np.uint8),
    )


def _with_dead(next_states: Ints) -> Ints:
    """A last row that stays dead, which every missing transition leads to."""
    dead = len(next_states)
    rows = np.append(next_states, np.full((1, next_states.shape[1]), -1, np.int32), axis=0)
    return np.where(rows < 0, dead, rows)
