"""How numbers are written where a model writes them: every text is of bounded length, and finite.

Values are decided in `numbers`, where 1 may be 1.000 with any number of zeros. Here that is cut to
what JSON writers make of numbers, so that no model can spend its tokens on zeros, and no reader
gets an infinity. A cut takes texts away, never the last text of a value: where a schema holds
longer numbers than the limits, the limits grow.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import Any

from phloem.grammar.dfa import Budget, Dfa
from phloem.grammar.errors import ConstraintTooComplex
from phloem.grammar.json_schema.comparison import Bound, scientific_within
from phloem.grammar.json_schema.values import Number, is_number
from phloem.grammar.regex import parse

_DIGITS = 80
"""Before the point: integers of 256 bits have 78."""
_PLACES = 24
"""Behind the point: JavaScript writes up to 22 before it takes to exponents, Python up to 20."""
_MOST_STATES = 10_000

_PLUS = r"[eE]\+?(0?[0-9]|[1-9][0-9]|[12][0-9]{2}|30[0-8])"
_MINUS = r"[eE]-(0?[0-9]|[1-9][0-9]|[12][0-9]{2}|3[01][0-9]|32[0-4])"
_LARGEST = Number.of(Decimal("1.7976931348623157e308"))
_SMALLEST = Number.of(Decimal("4.9e-324"))


@dataclass(frozen=True)
class Notation:
    """How many digits the numbers of one schema may have."""

    digits: int = _DIGITS
    places: int = _PLACES

    @classmethod
    def of(cls, schema: Any) -> Notation:
        """Room for the numbers that a schema speaks of, wherever in it."""
        digits, places = _DIGITS, _PLACES
        for number in _numbers_in(schema):
            digits = max(digits, len(number.digits) + number.exponent + 1)
            places = max(places, -number.exponent)
        return cls(digits, places)

    @property
    def any_number(self) -> Dfa:
        """For places where any number is legal."""
        return _any_number(self)

    def of_set(self, numbers: Dfa) -> Dfa:
        """For places where the numbers of a set are legal.

        Multiples that take too many states to be counted beside their digits (above 100 or so)
        may have any number of digits before the point.

        Integers have no zeros behind the point but one, and no point before an exponent: who writes
        1.5 means no integer of 17 digits. Where there are only finitely many integers, that stays.
        """
        return _of_set(self, numbers)


@lru_cache(maxsize=16)
def _any_number(notation: Notation) -> Dfa:
    """Also `12.5e-3` and `0e0`, while the value is finite whatever the digits."""
    exponent = r"[eE][+-]?(0?[0-9]|[1-9][0-9]|[12][0-9]{2}|30[0-5])"
    engineering = rf"-?(0|[1-9][0-9]{{0,2}})(\.[0-9]{{1,{notation.places}}})?{exponent}"
    return (
        _decimals(notation.digits, notation.places).union(parse(engineering)).union(_scientific())
    )


@lru_cache(maxsize=1024)
def _of_set(notation: Notation, numbers: Dfa) -> Dfa:
    whole = numbers.intersect(_language(r"-?(0|[1-9][0-9]*)\.[0-9]*[1-9][0-9]*")).is_empty
    few = whole and numbers.intersect(_language("-?[1-9][0-9]*")).is_finite
    try:
        written = _written(notation.digits, notation.places, whole, few)
        return numbers.intersect(written, Budget(_MOST_STATES))
    except ConstraintTooComplex:
        return numbers.intersect(_written(None, notation.places, whole, few))


@lru_cache(maxsize=64)
def _written(digits: int | None, places: int, whole: bool, few: bool) -> Dfa:
    """The texts of all numbers, or of those that are integers, few of them or not."""
    exponents = _scientific()
    if whole and not few:
        exponents = exponents.difference(_language(r"-?[1-9]\.[0-9]+[eE].*"))
    decimals = _decimals(digits, 1, "0") if whole else _decimals(digits, places)
    return decimals.union(exponents)


@lru_cache(maxsize=64)
def _decimals(digits: int | None, places: int, behind: str = "0-9") -> Dfa:
    more = "*" if digits is None else f"{{0,{digits - 1}}}"
    return parse(rf"-?(0|[1-9][0-9]{more})(\.[{behind}]{{1,{places}}})?")


@lru_cache(maxsize=1)
def _scientific() -> Dfa:
    """One digit before the point and at most 16 after it, as printers of floats write them.

    Exponents are padded to two digits at most. No value is beyond a float, nor so small that it
    reads as 0.
    """
    budget = Budget()
    shape = parse(rf"-?[1-9](\.[0-9]{{1,16}})?({_PLUS}|{_MINUS})")
    below = scientific_within(
        [Bound(_LARGEST, (-1, 0)), Bound(_negative(_LARGEST), (0, 1))], budget
    )
    above = scientific_within([Bound(_SMALLEST, (0, 1))], budget).union(
        scientific_within([Bound(_negative(_SMALLEST), (-1, 0))], budget)
    )
    zeroth = parse(r"-?[1-9](\.[0-9]{1,16})?[eE][+-]?00?")
    return shape.intersect(below.intersect(above).union(zeroth))


def _negative(number: Number) -> Number:
    return number._replace(negative=True)


@lru_cache(maxsize=16)
def _language(pattern: str) -> Dfa:
    return parse(pattern)


def _numbers_in(schema: Any) -> Iterable[Number]:
    stack = [schema]
    while stack:
        value = stack.pop()
        if isinstance(value, dict):
            stack.extend(value.values())
        elif isinstance(value, list):
            stack.extend(value)
        elif is_number(value):
            yield Number.of(value)
