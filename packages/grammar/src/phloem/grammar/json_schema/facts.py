"""Reading the values of keywords, with errors that say where and what."""

from __future__ import annotations

from typing import Any

from phloem.grammar.errors import ConstraintTooComplex, GrammarError
from phloem.grammar.json_schema.document import Location
from phloem.grammar.json_schema.values import Number, is_number, shown

_MAX_COUNT = 10**9


def malformed(location: Location, keyword: str, rule: str) -> GrammarError:
    """The error for a value that a keyword cannot have."""
    place = f"{location.pointer}/{keyword}"
    return GrammarError(
        f"{shown(location.schema[keyword])} at {place} is not legal: it must be {rule}"
    )


def count(location: Location, keyword: str) -> int | None:
    """A keyword's natural number (2.0 is one); None where the keyword is absent.

    Raises:
        GrammarError: if it is none.
    """
    value = location.schema.get(keyword)
    if keyword not in location.schema:
        return None
    whole = Number.of(value).integer if is_number(value) else None
    if whole is None or whole < 0:
        raise malformed(location, keyword, "an integer that is not negative")
    if whole > _MAX_COUNT:
        raise ConstraintTooComplex(
            f"{location.pointer}/{keyword} is above {_MAX_COUNT}: use a smaller count"
        )
    return whole


def number(location: Location, keyword: str) -> Number | None:
    """A keyword's number; None where the keyword is absent.

    Raises:
        GrammarError: if it is none.
    """
    value = location.schema.get(keyword)
    if keyword not in location.schema:
        return None
    if not is_number(value):
        raise malformed(location, keyword, "a number")
    return Number.of(value)


def flag(location: Location, keyword: str) -> bool:
    """A keyword's boolean; False where the keyword is absent.

    Raises:
        GrammarError: if it is none.
    """
    value = location.schema.get(keyword, False)
    if not isinstance(value, bool):
        raise malformed(location, keyword, "true or false")
    return value


def text(location: Location, keyword: str) -> str | None:
    """A keyword's string; None where the keyword is absent.

    Raises:
        GrammarError: if it is none.
    """
    if keyword not in location.schema:
        return None
    value = location.schema[keyword]
    if not isinstance(value, str):
        raise malformed(location, keyword, "a string")
    return value


def mapping(location: Location, keyword: str) -> dict[str, Any]:
    """A keyword's object; empty where the keyword is absent.

    Raises:
        GrammarError: if it is none.
    """
    value = location.schema.get(keyword, {})
    if not isinstance(value, dict):
        raise malformed(location, keyword, "an object")
    return value


def names(location: Location, keyword: str) -> list[str]:
    """A keyword's list of strings; empty where the keyword is absent.

    Raises:
        GrammarError: if it is none.
    """
    value = location.schema.get(keyword, [])
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise malformed(location, keyword, "a list of strings")
    return value
