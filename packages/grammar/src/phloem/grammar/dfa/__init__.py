"""Deterministic finite automata over bytes, always trimmed and minimal."""

from phloem.grammar.dfa.budget import Budget
from phloem.grammar.dfa.core import Dfa

__all__ = ["Budget", "Dfa"]
