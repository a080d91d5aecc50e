"""Constraints on what a language model may say, as token masks: usable with any engine."""

from phloem.grammar.base import Grammar, GrammarBackend, Matcher
from phloem.grammar.constraint import Constraint
from phloem.grammar.errors import ConstraintTooComplex, GrammarError, UnsupportedConstraint

__all__ = [
    "Constraint",
    "ConstraintTooComplex",
    "Grammar",
    "GrammarBackend",
    "GrammarError",
    "Matcher",
    "UnsupportedConstraint",
]
