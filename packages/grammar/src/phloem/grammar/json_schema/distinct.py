"""Arrays of distinct items, written out where the items are of few values."""

from __future__ import annotations

from collections.abc import Iterator

from phloem.grammar.json_schema.formula import FALSE, Formula
from phloem.grammar.json_schema.judge import Judge
from phloem.grammar.json_schema.terms import ArrayTerm

_MAX_VALUES = 12
_MAX_SEQUENCES = 150


def distinct_sequences(judge: Judge, term: ArrayTerm) -> list[ArrayTerm] | None:
    """Terms for the arrays of a term that have distinct items; None if they would be too many.

    Each is of one sequence that cannot be longer, and of its beginnings.
    """
    if term.demands:
        return None
    found: list[ArrayTerm] = []
    for sequence in _sequences(judge, term, ()):
        if sequence is None or len(found) == _MAX_SEQUENCES:
            return None
        if len(sequence) >= term.fewest:
            found.append(ArrayTerm(sequence, FALSE, term.fewest, len(sequence)))
    return found


def _sequences(
    judge: Judge, term: ArrayTerm, sequence: tuple[Formula, ...]
) -> Iterator[tuple[Formula, ...] | None]:
    """Distinct items, as far as they go; None for a place of too many values."""
    values: tuple[Formula, ...] | None = ()
    if term.most is None or len(sequence) < term.most:
        values = judge.few_values(term.at(len(sequence)), _MAX_VALUES)
    if values is None:
        yield None
        return
    following = [value for value in values if value not in sequence]
    for value in following:
        yield from _sequences(judge, term, (*sequence, value))
    if not following:
        yield sequence
