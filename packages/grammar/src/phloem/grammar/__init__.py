"""Constraints on what a language model may say, as token masks: usable with any engine."""

from phloem.grammar.base import Grammar, GrammarBackend, Matcher
from phloem.grammar.constraint import Constraint
from phloem.grammar.errors import ConstraintTooComplex, GrammarError, UnsupportedConstraint
from phloem.grammar.matcher import fill_masks
from phloem.grammar.reasoning import Reasoning, ReasoningMatcher
from phloem.grammar.registry import backend_names, create_backend, register_backend
from phloem.grammar.vocabulary import Vocabulary

__all__ = [
    "Constraint",
    "ConstraintTooComplex",
    "Grammar",
    "GrammarBackend",
    "GrammarError",
    "Matcher",
    "Reasoning",
    "ReasoningMatcher",
    "UnsupportedConstraint",
    "Vocabulary",
    "backend_names",
    "create_backend",
    "fill_masks",
    "register_backend",
]
