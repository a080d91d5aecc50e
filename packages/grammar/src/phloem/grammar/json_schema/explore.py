"""Automata from a description of their states: languages that are easier walked than written."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TypeAlias, TypeVar

from phloem.grammar.dfa import Budget, Dfa

State = TypeVar("State", bound=Hashable)
Edges: TypeAlias = list[tuple[int, int, State]]
"""(first byte, last byte, state), not overlapping."""


def explore(
    start: State,
    edges: Callable[[State], Edges[State]],
    accepts: Callable[[State], bool],
    budget: Budget,
) -> Dfa:
    """The language of an automaton whose states are found by following `edges` from `start`.

    Raises:
        ConstraintTooComplex: if there are too many.
    """
    numbers = {start: 0}
    states = [start]
    found: list[tuple[int, int, int, int]] = []
    for state in states:
        for first, last, target in edges(state):
            number = numbers.setdefault(target, len(states))
            if number == len(states):
                states.append(target)
                if not number & 255:
                    budget.check(number)
            found.append((numbers[state], first, last, number))
    return Dfa.of_ranges(found, [accepts(state) for state in states], budget)
