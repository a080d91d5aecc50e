"""Regular expressions, in Python's or ECMAScript's notation, as automata over UTF-8."""

from phloem.grammar.regex.compile import parse, search_dfa
from phloem.grammar.regex.escapes import Dialect

__all__ = ["Dialect", "parse", "search_dfa"]
