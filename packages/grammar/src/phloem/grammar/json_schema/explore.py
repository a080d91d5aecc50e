"""Automata from a description of their states: languages that are easier walked than written."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

from phloem.grammar.dfa import Budget, Dfa

State = TypeVar("State", bound=Hashable)
Edges: TypeAlias = list[tuple[int, int, State]]
"""(first byte, last byte, state), not overlapping."""


@dataclass(frozen=True, slots=True)
class Machine(Generic[State]):
    """A deterministic automaton whose states are found by following `edges` from `start`."""

    start: State
    edges: Callable[[State], Edges[State]]
    accepts: Callable[[State], bool]


def together(machines: Sequence[Machine[State]]) -> Machine[tuple[State, ...]]:
    """The texts that all of some machines accept."""

    def edges(states: tuple[State, ...]) -> Edges[tuple[State, ...]]:
        found: Edges[tuple[State, ...]] = [(0, 255, ())]
        for machine, state in zip(machines, states, strict=True):
            own = machine.edges(state)
            found = [
                (max(first, low), min(last, high), (*targets, target))
                for first, last, targets in found
                for low, high, target in own
                if max(first, low) <= min(last, high)
            ]
        return found

    def accepts(states: tuple[State, ...]) -> bool:
        return all(machine.accepts(state) for machine, state in zip(machines, states, strict=True))

    return Machine(tuple(machine.start for machine in machines), edges, accepts)


def explore(machine: Machine[State], budget: Budget) -> Dfa:
    """The language of a machine.

    Raises:
        ConstraintTooComplex: if it has too many states.
    """
    numbers = {machine.start: 0}
    states = [machine.start]
    found: list[tuple[int, int, int, int]] = []
    for state in states:
        for first, last, target in machine.edges(state):
            number = numbers.setdefault(target, len(states))
            if number == len(states):
                states.append(target)
                if not number & 255:
                    budget.check(number)
            found.append((numbers[state], first, last, number))
    return Dfa.of_ranges(found, [machine.accepts(state) for state in states], budget)
