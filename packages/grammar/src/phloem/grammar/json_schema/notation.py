"""How numbers are written where a model writes them: every text is of bounded length, and finite.

Values are decided in `numbers`, where 1 may be 1.000 with any number of zeros. Here that is cut to
what JSON writers make of numbers, so that no model can spend its tokens on zeros, and who reads
numbers as floats gets no infinity, and none that is not in the set. A cut takes texts away, never
the last text of a value: where a schema holds longer numbers than the limits, the limits grow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
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
_POINTED_DIGITS = 16
"""Before a point that is followed by more than zeros: beyond, floats are printed with exponents."""
_MOST_STATES = 10_000

_PLUS = r"[eE]\+?(0?[0-9]|[1-9][0-9]|[12][0-9]{2}|30[0-8])"
_MINUS = r"[eE]-(0?[0-9]|[1-9][0-9]|[12][0-9]{2}|3[01][0-9]|32[0-4])"
_PROPER = r"-?(0|[1-9][0-9]*)\.[0-9]*[1-9][0-9]*"
_EXACT = "-?(0|[1-9][0-9]{0,14}|[1-8][0-9]{15}|9[0-9]{14}[02468])"
"""Integers that are floats."""
_LARGEST = Number.of(Decimal("1.7976931348623157e308"))
_SMALLEST = Number.of(Decimal("4.9e-324"))


@dataclass(frozen=True)
class Notation:
    """How many digits the numbers of one schema may have."""

    digits: int | None = _DIGITS
    pointed: int | None = _POINTED_DIGITS
    places: int = _PLACES

    @classmethod
    def of(cls, schema: Any) -> Notation:
        """Room for the numbers that a schema speaks of, wherever in it."""
        digits, pointed, places = _DIGITS, _POINTED_DIGITS, _PLACES
        for number in _numbers_in(schema):
            before = len(number.digits) + number.exponent
            digits = max(digits, before + 1)
            if number.exponent < 0:
                pointed, places = max(pointed, before), max(places, 1 - number.exponent)
        return cls(digits, pointed, places)

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
    decimals = rf"{_whole(notation.digits)}(\.[0-9]{{1,{notation.places}}})?"
    exponent = r"[eE][+-]?(0?[0-9]|[1-9][0-9]|[12][0-9]{2}|30[0-5])"
    engineering = rf"-?(0|[1-9][0-9]{{0,2}})(\.[0-9]{{1,{notation.places}}})?{exponent}"
    return parse(f"{decimals}|{engineering}").union(_scientific())


@lru_cache(maxsize=1024)
def _of_set(notation: Notation, numbers: Dfa) -> Dfa:
    texts = _kind(numbers)
    try:
        return numbers.intersect(texts(notation), Budget(_MOST_STATES))
    except ConstraintTooComplex:
        return numbers.intersect(texts(replace(notation, digits=None, pointed=None)))


def _kind(numbers: Dfa) -> Callable[[Notation], Dfa]:
    """Which texts there are, by whether a set has integers and others."""
    if numbers.intersect(_language(_PROPER)).is_empty:
        few = numbers.intersect(_language("-?[1-9][0-9]*")).is_finite
        return _few_integers if few else _integers
    if not numbers.intersect(_language("-?(0|[1-9][0-9]*)")).is_empty:
        return _numbers
    between = numbers.intersect(_language(r"-?[1-9][0-9]*\.[0-9]*[1-9]"))
    return _numbers if between.is_finite else _no_integers


@lru_cache(maxsize=16)
def _numbers(notation: Notation) -> Dfa:
    pointed = rf"{_whole(notation.pointed)}\.[0-9]{{1,{notation.places}}}"
    return parse(f"{_whole(notation.digits)}|{pointed}").union(_scientific())


@lru_cache(maxsize=16)
def _few_integers(notation: Notation) -> Dfa:
    pointed = _whole(None) if notation.pointed is None else _EXACT
    return parse(rf"{_whole(notation.digits)}|{pointed}\.0").union(_scientific())


@lru_cache(maxsize=16)
def _integers(notation: Notation) -> Dfa:
    return _few_integers(notation).difference(_language(r"-?[1-9]\.[0-9]+[eE].*"))


@lru_cache(maxsize=16)
def _no_integers(notation: Notation) -> Dfa:
    """For sets that leave integers out: none of the texts reads as one.

    Within 17 digits, those that read as an integer without being it have zeros or nines behind the
    point, up to the last digit.
    """
    shapes = [rf"0\.0{{0,{notation.places - 17}}}[0-9]{{1,17}}"]
    wrong = [r"0\.9{16}[0-9]", r"9\.9{15}[0-9][eE]-0?1"]
    for before in range(1, 16):
        shapes.append(rf"[1-9][0-9]{{{before - 1}}}\.[0-9]{{1,{17 - before}}}")
        wrong.append(rf"[0-9]{{{before}}}\.(0{{{16 - before}}}|9{{{16 - before}}})[0-9]")
    texts = parse(f"-?({'|'.join(shapes)})").union(_scientific())
    return texts.difference(parse(f"-?({'|'.join(wrong)})"))


def _whole(digits: int | None) -> str:
    more = "*" if digits is None else f"{{0,{digits - 1}}}"
    return f"-?(0|[1-9][0-9]{more})"


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
