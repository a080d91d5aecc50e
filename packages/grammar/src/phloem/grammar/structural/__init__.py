"""Structural tags: free text with constrained parts between a begin and an end."""

from phloem.grammar.structural.automaton import (
    StructuralTagAutomaton,
    compile_structural_tag,
    read_structural_tag,
)
from phloem.grammar.structural.spec import StructuralTag, Tag, parse_structural_tag

__all__ = [
    "StructuralTag",
    "StructuralTagAutomaton",
    "Tag",
    "compile_structural_tag",
    "parse_structural_tag",
    "read_structural_tag",
]
