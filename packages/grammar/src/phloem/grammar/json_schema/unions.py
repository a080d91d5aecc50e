"""The union of many automata."""

from __future__ import annotations

from collections.abc import Sequence

from phloem.grammar.dfa import Budget, Dfa


def union_of(sets: Sequence[Dfa], budget: Budget) -> Dfa:
    """The union of any number of languages."""
    if len(sets) <= 1:
        return sets[0] if sets else Dfa.empty()
    middle = len(sets) // 2
    return union_of(sets[:middle], budget).union(union_of(sets[middle:], budget), budget)
