"""Regular expressions inside of schemas, in the ECMA dialect, as automata over decoded strings."""

from __future__ import annotations

from phloem.grammar.dfa import Budget, Dfa
from phloem.grammar.errors import ConstraintTooComplex, GrammarError, UnsupportedConstraint
from phloem.grammar.json_schema.strings import ANY
from phloem.grammar.regex import search_dfa


def containing(pattern: str, pointer: str, keyword: str, budget: Budget) -> Dfa:
    """Strings in which a pattern matches somewhere.

    Raises:
        UnsupportedConstraint: if the pattern cannot be compiled; naming the place in the schema.
        ConstraintTooComplex: if it grows over the budget.
    """
    try:
        language = search_dfa(pattern, "ecma", budget)
    except ConstraintTooComplex:
        raise
    except GrammarError as error:
        raise UnsupportedConstraint(
            pointer, keyword, f"the regular expression {pattern!r} cannot be used: {error}"
        ) from error
    return ANY if language == ANY else language
