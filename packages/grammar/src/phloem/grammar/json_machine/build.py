"""How the `fsm` backend makes JSON automata out of constraints."""

from __future__ import annotations

from phloem.grammar.constraint import Constraint
from phloem.grammar.dfa import Budget
from phloem.grammar.errors import GrammarError
from phloem.grammar.json_machine.machine import JsonAutomaton
from phloem.grammar.json_schema import load_schema, normalize
from phloem.grammar.json_schema.shape import SchemaGraph
from phloem.grammar.vocabulary import Vocabulary

_NEEDED = frozenset((0x0A, *range(0x20, 0x7F), *range(0x80, 0xC0)))
"""Bytes without which a text can have no way on. Tokens that begin a character need not exist."""


def build_json(constraint: Constraint, vocabulary: Vocabulary, budget: Budget) -> JsonAutomaton:
    """The automaton of a JSON schema, or of any JSON object.

    Raises:
        UnsupportedConstraint, GrammarError, ConstraintTooComplex: see `GrammarBackend.compile`.
    """
    missing = bytes(byte for byte in vocabulary.missing_bytes if byte in _NEEDED)
    if missing:
        raise GrammarError(
            f"the vocabulary has no tokens for the bytes {missing.hex(' ')}, so that JSON could "
            "begin and not be ended: use a vocabulary of bytes, or one with byte fallback"
        )
    return JsonAutomaton.of(
        _graph(constraint, budget),
        budget,
        is_compact=constraint.whitespace == "compact",
        is_free=constraint.property_order == "free",
    )


def check_json(constraint: Constraint, budget: Budget) -> None:
    """Raise what `build_json` would, for what cannot be enforced.

    Raises:
        UnsupportedConstraint, GrammarError, ConstraintTooComplex: see `GrammarBackend.check`.
    """
    _graph(constraint, budget)


def _graph(constraint: Constraint, budget: Budget) -> SchemaGraph:
    is_schema = constraint.kind == "json_schema"
    schema = load_schema(constraint.source) if is_schema else {"type": "object"}
    return normalize(schema, formats=constraint.formats, budget=budget)
