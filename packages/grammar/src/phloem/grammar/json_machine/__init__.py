"""JSON text by the normal form of a schema: a pushdown automaton that reads it byte by byte."""

from phloem.grammar.json_machine.build import build_json, check_json
from phloem.grammar.json_machine.machine import JsonAutomaton

__all__ = ["JsonAutomaton", "build_json", "check_json"]
