"""Constraints as plain data: what they refuse by themselves."""

from __future__ import annotations

import pytest

from phloem.grammar.constraint import Constraint
from phloem.grammar.errors import GrammarError


@pytest.mark.parametrize(
    ("option", "value", "known"),
    [
        ("formats", "Assert", "'assert', 'annotate'"),
        ("formats", None, "'assert', 'annotate'"),
        ("whitespace", "wild", "'bounded', 'compact'"),
        ("property_order", "random", "'free', 'fixed'"),
        ("property_order", ["free"], "'free', 'fixed'"),
    ],
)
def test_an_option_that_is_not_known_is_refused_with_those_that_are(option, value, known):
    with pytest.raises(GrammarError, match=f"^{option} is .*: give one of {known}$"):
        Constraint.json_schema({}, **{option: value})


def test_a_kind_that_is_not_known_is_refused():
    with pytest.raises(GrammarError, match="kind is 'regexp': give one of 'json_schema'"):
        Constraint("regexp", "a")


def test_a_nul_character_is_refused():
    with pytest.raises(GrammarError, match="NUL"):
        Constraint.regex("a\0b")
