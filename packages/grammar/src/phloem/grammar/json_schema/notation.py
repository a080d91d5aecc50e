"""How numbers are written where a model writes them: every text is of bounded length, and means the
same to all readers.

Values are decided in `numbers`, where 1 may be 1.000 with any number of zeros. Here that is cut to
what JSON writers make of numbers, so that no model can spend its tokens on zeros. Many readers take
a text with a point or an exponent for the nearest float, 2.9999999999999999999 for 3; where it
matters which number is meant, such texts have so few digits that the float is as good.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal, localcontext
from functools import lru_cache
from math import isfinite
from typing import Any, TypeAlias

from phloem.grammar.dfa import Budget, Dfa
from phloem.grammar.errors import ConstraintTooComplex
from phloem.grammar.json_schema.comparison import Bound, decimals_within, scientific_within
from phloem.grammar.json_schema.document import Document
from phloem.grammar.json_schema.formats import INTEGER_FORMATS
from phloem.grammar.json_schema.unions import union_of
from phloem.grammar.json_schema.values import Number, is_number
from phloem.grammar.regex import parse

_DIGITS = 80
"""Of integers: those of 256 bits have 78."""
_PLACES = 24
"""Behind the point: JavaScript writes up to 22 before it takes to exponents, Python up to 20."""
_POINTED_DIGITS = 16
"""Before the point of free numbers: beyond, floats are printed with exponents."""
_FIGURES = 15
"""Significant digits: decimals of so many are different floats, from 1e-307 on."""
_MOST_APART = 32
_MOST_STATES = 10_000
_COMPARING = ("const", "enum", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")

_PLUS = r"[eE]\+?(0?[0-9]|[1-9][0-9]|[12][0-9]{2}|30[0-8])"
_MINUS = r"[eE]-(0?[0-9]|[1-9][0-9]|[12][0-9]{2}|3[01][0-9]|32[0-4])"
_NORMAL = r".*[eE](\+?[0-9]+|-([0-9]{1,2}|[12][0-9]{2}|30[0-7]))"
_PLAIN = r"-?(0|[1-9][0-9]*)(\.[0-9]*[1-9])?"
_PROPER = r"-?(0|[1-9][0-9]*)\.[0-9]*[1-9][0-9]*"
_LARGEST = Number.of(Decimal("1.7976931348623157e308"))
_SMALLEST = Number.of(Decimal("4.9e-324"))


_Value: TypeAlias = int | float | Decimal


@dataclass(frozen=True)
class Notation:
    """How the numbers of one schema may be written."""

    digits: int = _DIGITS
    places: int = _PLACES
    large: bool = True
    """Whether integers may have an exponent."""
    apart: tuple[Number, ...] = ()
    """Numbers that read as another one, which the schema speaks of."""
    long: tuple[Number, ...] = ()
    """Numbers of the schema itself that have more digits than others may have."""

    @classmethod
    def of(cls, document: Document) -> Notation:
        """Room for the numbers that a schema speaks of, and none for those taken for them."""
        digits, places = _DIGITS, _PLACES
        compared = list(_compared(document))
        for number in map(Number.of, (*compared, *_multiples(document))):
            digits = max(digits, len(number.digits) + number.exponent + 1)
            places = max(places, 1 - number.exponent)
        apart = tuple(dict.fromkeys(other for each in compared for other in _taken_for(each)))
        few = len(apart) <= _MOST_APART
        long = dict.fromkeys(Number.of(each) for each in compared if _is_long(each))
        return cls(digits, places, few, apart if few else (), tuple(long))

    @property
    def any_number(self) -> Dfa:
        """For places where any number is legal."""
        return _any_number(self)

    def of_set(self, numbers: Dfa) -> Dfa:
        """For places where the numbers of a set are legal.

        Multiples that take too many states to be counted beside their digits (above 100 or so)
        may have any number of digits as integers, and then no point.

        Integers have no zeros behind the point but one, and no point before an exponent: who writes
        1.5 means no integer of 17 digits. Where there are only finitely many integers, that stays.
        """
        return _of_set(self, numbers)


@lru_cache(maxsize=16)
def _any_number(notation: Notation) -> Dfa:
    """Also `12.5e-3` and `0e0`, while the value is finite whatever the digits."""
    decimals = rf"{_whole(notation.digits)}|{_whole(_POINTED_DIGITS)}\.[0-9]{{1,{notation.places}}}"
    exponent = r"[eE][+-]?(0?[0-9]|[1-9][0-9]|[12][0-9]{2}|30[0-5])"
    engineering = rf"-?(0|[1-9][0-9]{{0,2}})(\.[0-9]{{1,{notation.places}}})?{exponent}"
    return parse(f"{decimals}|{engineering}").union(_scientific())


@lru_cache(maxsize=1024)
def _of_set(notation: Notation, numbers: Dfa) -> Dfa:
    whole = not numbers.meets(_language(_PROPER))
    # Of nothing but integers and the schema's long numbers does it matter how many there are.
    asked = whole or bool(notation.long)
    finite = asked and numbers.intersect(_language(_PLAIN)).is_finite
    texts = _integers(notation, finite) if whole else _numbers(notation, finite)
    try:
        return numbers.intersect(texts, Budget(_MOST_STATES))
    except ConstraintTooComplex:
        integers = _language(_whole(None))
        result = numbers.intersect(integers)
        return result if whole else result.union(numbers.intersect(texts.difference(integers)))


@lru_cache(maxsize=64)
def _numbers(notation: Notation, finite: bool) -> Dfa:
    zeros = notation.places - _FIGURES
    shapes = [rf"0\.0{{0,{zeros}}}[0-9]{{1,{_FIGURES}}}"]
    shapes += [
        rf"[1-9][0-9]{{{before - 1}}}\.[0-9]{{1,{_FIGURES - before}}}"
        for before in range(1, _FIGURES)
    ]
    pointed = parse(f"-?({'|'.join(shapes)})").union(_pointed_integers())
    return _texts(notation, pointed.union(_exponents(notation)), finite)


@lru_cache(maxsize=64)
def _integers(notation: Notation, finite: bool) -> Dfa:
    exponents = _exponents(notation)
    if not finite:
        exponents = exponents.difference(_language(r"-?[1-9]\.[0-9]+[eE].*"))
    return _texts(notation, _pointed_integers().union(exponents), finite)


def _texts(notation: Notation, floats: Dfa, finite: bool) -> Dfa:
    legal = floats.difference(_taken(notation)).union(_long(notation, finite))
    return parse(_whole(notation.digits)).union(legal)


@lru_cache(maxsize=1)
def _pointed_integers() -> Dfa:
    """Of the integers below 10 ** 16 those that are floats: all to 2 ** 53, then the even ones."""
    limits = [Bound(Number(sign, str(2**53), 0), (2 * sign - 1, 0)) for sign in (False, True)]
    small = decimals_within(limits, Budget(), integers=True).intersect(parse(r".*\.0"))
    return small.union(parse(r"-?[1-9][0-9]{14}[02468]\.0"))


def _exponents(notation: Notation) -> Dfa:
    mantissa = rf"-?[1-9](\.[0-9]{{1,{_FIGURES - 1}}})?"
    texts = _scientific().intersect(_language(f"{mantissa}[eE].*"))
    texts = texts.intersect(_language(_NORMAL))
    return texts if notation.large else texts.intersect(_language(".*-[0-9]+"))


def _taken(notation: Notation) -> Dfa:
    """The texts with a point or an exponent of the numbers that read as others."""
    bounds = [[Bound(number, (0,))] for number in notation.apart]
    decimals = [decimals_within(bound, Budget()) for bound in bounds]
    others = [scientific_within(bound, Budget()) for bound in bounds]
    return union_of([*decimals, *others], Budget())


def _long(notation: Notation, finite: bool) -> Dfa:
    """The schema's own numbers of many digits.

    Where there are infinitely many others, those of them that printers of floats write.
    """
    texts = []
    for number in notation.long:
        near = float(_decimal(number))
        if isfinite(near) and Number.of(near) == number:
            texts += [repr(near).encode(), repr(near).replace("e", "E").encode()]
        elif finite:
            texts.append(f"{_decimal(number):f}".encode())
    return Dfa.of_literals(texts) if texts else Dfa.empty()


def _is_long(value: _Value) -> bool:
    """Whether it has no other text; an integer is one."""
    number = Number.of(value)
    before = len(number.digits) + number.exponent
    return not isinstance(value, int) and (len(number.digits) > _FIGURES or before < -306)


def _taken_for(value: _Value) -> Iterator[Number]:
    """Numbers of 15 digits whose texts read as the float nearest to a value, and are not it.

    Integers are read exactly: one that is no float has no text with an exponent either.
    """
    exact = _decimal(Number.of(value))
    near = float(exact)
    if not near or not isfinite(near):
        return
    for rounding in (ROUND_FLOOR, ROUND_CEILING):
        with localcontext() as context:
            context.prec, context.rounding = _FIGURES, rounding
            other = +exact
        rounded = isinstance(value, int) and Decimal(near) != exact
        if float(other) == near and (rounded or other != exact):
            yield Number.of(other)


def _decimal(number: Number) -> Decimal:
    return Decimal((int(number.negative), [*map(int, number.digits)], number.exponent))


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


@lru_cache(maxsize=32)
def _language(pattern: str) -> Dfa:
    return parse(pattern)


def _multiples(document: Document) -> Iterator[_Value]:
    for location in document.locations:
        if isinstance(location.schema, dict) and is_number(location.schema.get("multipleOf")):
            yield location.schema["multipleOf"]


def _compared(document: Document) -> Iterator[_Value]:
    """The numbers that values are compared with."""
    stack: list[Any] = []
    for location in document.locations:
        if isinstance(location.schema, dict):
            stack.extend(location.schema.get(keyword) for keyword in _COMPARING)
            if isinstance(location.schema.get("format"), str):
                stack.extend(INTEGER_FORMATS.get(location.schema["format"], ()))
    while stack:
        value = stack.pop()
        if isinstance(value, dict):
            stack.extend(value.values())
        elif isinstance(value, list):
            stack.extend(value)
        elif is_number(value):
            yield value
