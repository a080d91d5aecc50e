"""Sets of numbers as automata over their JSON texts.

All sets of one schema are cut to one universe of texts, within which membership is decided by value
alone; so union, intersection and difference of the automata are those of the sets. The universe is
all decimals without an exponent and, unless a `multipleOf` forbids it, the scientific notation that
printers of floats use: one digit before the point, at most 16 after it, an exponent of +16 to +308,
or -1 and less. Which of a number's texts may be written is decided later, by `notation`. Only
draft 4 tells 1 from 1.0; its integers are decided by their text.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import gcd
from typing import TypeAlias

from phloem.grammar.dfa import Budget, Dfa
from phloem.grammar.errors import UnsupportedConstraint
from phloem.grammar.json_schema.comparison import (
    Bound,
    decimals_within,
    relation_of,
    scientific_within,
)
from phloem.grammar.json_schema.explore import Edges, Machine, explore
from phloem.grammar.json_schema.unions import union_of
from phloem.grammar.json_schema.values import Number
from phloem.grammar.regex import parse

_DECIMAL = r"-?(0|[1-9][0-9]*)(\.[0-9]+)?"
_UNSIGNED = r"[1-9](\.[0-9]{1,16})?"
_MANTISSA = f"-?{_UNSIGNED}"
_LARGE = r"[eE]\+?0*(1[6-9]|[2-9][0-9]|[12][0-9]{2}|30[0-8])"
_SMALL = r"[eE]-0*[1-9][0-9]*"
_MAX_FRACTION = 16
_FEWEST_ZEROS = 16
_MAX_REMAINDERS = 20_000
_MAX_PLACES = 24


def divides_one(multiple: Number) -> bool:
    """Whether 1 is a multiple of it, to few places: then scientific notation can be judged."""
    factor, places = _scaled(multiple)
    return places <= _MAX_PLACES and pow(10, places) % factor == 0


@dataclass(frozen=True)
class Numbers:
    """Makes the sets of one schema."""

    budget: Budget
    scientific: bool
    """Whether the universe holds scientific notation; needs `divides_one` of every multiple."""
    by_text: bool = False
    """Whether an integer is what is written as one, as in draft 4, and 1.0 is none."""

    @property
    def universe(self) -> Dfa:
        """All numbers."""
        exponents = f"|{_MANTISSA}({_LARGE}|{_SMALL})" if self.scientific else ""
        return _language(f"{_DECIMAL}{exponents}")

    @property
    def integers(self) -> Dfa:
        """Numbers without a fraction, also 1.0 where the value decides."""
        if self.by_text:
            return _language("-?(0|[1-9][0-9]*)")
        exponents = f"|{_MANTISSA}{_LARGE}" if self.scientific else ""
        return _language(rf"-?(0|[1-9][0-9]*)(\.0+)?{exponents}")

    def within(self, bounds: Collection[Bound], *, whole: bool = False) -> Dfa:
        """The numbers, or with `whole` only the integers, within all of some bounds."""
        if not bounds:
            return self.integers if whole else self.universe
        decimals = _decimals(tuple(bounds), whole)
        if whole and self.by_text:
            decimals = decimals.intersect(self.integers, self.budget)
        return decimals.union(self._scientific(bounds, whole), self.budget)

    def _scientific(self, bounds: Collection[Bound], whole: bool) -> Dfa:
        """The texts with an exponent within some bounds."""
        if not self.scientific or (whole and self.by_text):
            return Dfa.empty()
        quarters = {(sign, size) for sign in ("", "-") for size in ((1,) if whole else (-1, 1))}
        near = []
        for bound in bounds:
            power = len(bound.limit.digits) + bound.limit.exponent - 1
            if not bound.limit.digits or 0 <= power < _FEWEST_ZEROS:
                # Such a text is far from the limit: its exponent tells all about its magnitude.
                quarters = {each for each in quarters if _is_within(bound, *each)}
            else:
                near.append(bound)
        patterns = [
            sign + _UNSIGNED + (_LARGE if size > 0 else _SMALL) for sign, size in sorted(quarters)
        ]
        allowed = _language("|".join(patterns)) if patterns else Dfa.empty()
        if not near or allowed.is_empty:
            return allowed
        return scientific_within(near, self.budget).intersect(allowed, self.budget)

    def any_of(self, values: Iterable[Number]) -> Dfa:
        """The numbers that equal one of some."""
        endings: dict[str, list[bytes]] = {}
        for value in dict.fromkeys(values):
            for text, ending in _notations(value, self.scientific):
                endings.setdefault(ending, []).append(text.encode())
        sets = [
            Dfa.of_literals(texts, self.budget).concat(_language(ending), self.budget)
            for ending, texts in endings.items()
        ]
        return union_of(sets, self.budget)

    def multiples(self, multiple: Number, *, of_integers: bool, pointer: str) -> Dfa:
        """The multiples of a positive number; with `of_integers`, only right for integers.

        Raises:
            UnsupportedConstraint: if it has too many digits for an automaton.
        """
        factor, places = _scaled(multiple)
        if of_integers:
            factor, places = factor // gcd(factor, 10**places), 0
        if factor * (places + 2) > _MAX_REMAINDERS:
            raise UnsupportedConstraint(
                pointer, "multipleOf", "it has too many digits to be enforced: use a rounder number"
            )
        result = _multiples(factor, places, self.budget)
        if not self.scientific:
            return result
        sets = [result, _language(_MANTISSA + _LARGE)]
        if not of_integers:
            for exponent in range(1, places + 2):
                base = multiple._replace(exponent=multiple.exponent + exponent)
                whole = _multiples(*_scaled(base), self.budget)
                whole = whole.intersect(_language(_MANTISSA), self.budget)
                sets.append(whole.concat(_language(f"[eE]-0*{exponent}"), self.budget))
        return union_of(sets, self.budget)


@lru_cache(maxsize=1024)
def _language(pattern: str) -> Dfa:
    return parse(pattern)


@lru_cache(maxsize=1024)
def _decimals(bounds: tuple[Bound, ...], whole: bool) -> Dfa:
    return decimals_within(bounds, Budget(), integers=whole)


def _is_within(bound: Bound, sign: str, size: int) -> bool:
    """Whether numbers of that sign, of more (1) or less (-1) magnitude than a limit, are."""
    magnitude = size if bound.limit.digits else 1
    return relation_of(bool(sign), magnitude, bound.limit) in bound.relations


def _notations(value: Number, scientific: bool) -> Iterator[tuple[str, str]]:
    """The texts of one number in the universe, as what they begin with and a pattern of the end."""
    sign = "-" if value.negative else ""
    digits, point = value.digits, len(value.digits) + value.exponent
    whole = digits[: max(point, 0)].ljust(point, "0") or "0"
    fraction = "0" * -point + digits[max(point, 0) :] if digits else ""
    for each in (sign,) if digits else ("", "-"):
        yield (f"{each}{whole}.{fraction}", "0*") if fraction else (each + whole, r"(\.0+)?")
    power, more = point - 1, len(digits) - 1
    if not scientific or not digits or more > _MAX_FRACTION or 0 <= power < _FEWEST_ZEROS:
        return
    exponent = rf"[eE]{'-' if power < 0 else '[+]?'}0*{abs(power)}"
    if more:
        yield f"{sign}{digits[0]}.{digits[1:]}", f"0{{0,{_MAX_FRACTION - more}}}{exponent}"
    else:
        yield sign + digits, rf"(\.0{{1,{_MAX_FRACTION}}})?{exponent}"


def _scaled(multiple: Number) -> tuple[int, int]:
    """(factor, places): the multiple is factor / 10 ** places."""
    if multiple.exponent >= 0:
        return int(multiple.digits) * 10**multiple.exponent, 0
    return int(multiple.digits), -multiple.exponent


_Remainder: TypeAlias = tuple[str, int, int]
"""The part of the notation, the digits behind the point, and the remainder of the digits so far."""


def _multiples(factor: int, places: int, budget: Budget) -> Dfa:
    """Decimals whose value is a multiple of factor / 10 ** places."""

    def digits(
        target: Callable[[int], _Remainder], first: int = 0, last: int = 9
    ) -> Edges[_Remainder]:
        return [(48 + digit, 48 + digit, target(digit)) for digit in range(first, last + 1)]

    def edges(state: _Remainder) -> Edges[_Remainder]:
        kind, place, rest = state
        point: Edges[_Remainder] = [(46, 46, ("point", 0, rest))]
        if kind in ("start", "sign"):
            sign: Edges[_Remainder] = [(45, 45, ("sign", 0, 0))] if kind == "start" else []
            zero: Edges[_Remainder] = [(48, 48, ("zero", 0, 0))]
            return sign + zero + digits(lambda digit: ("whole", 0, digit % factor), 1)
        if kind == "zero":
            return point
        if kind == "whole":
            return point + digits(lambda digit: ("whole", 0, (rest * 10 + digit) % factor))
        if place == places:
            return [(48, 48, ("fraction", place, rest))]
        return digits(lambda digit: ("fraction", place + 1, (rest * 10 + digit) % factor))

    def accepts(state: _Remainder) -> bool:
        kind, place, rest = state
        ended = kind not in ("start", "sign", "point")
        return ended and rest * 10 ** (places - place) % factor == 0

    return explore(Machine(("start", 0, 0), edges, accepts), budget)
