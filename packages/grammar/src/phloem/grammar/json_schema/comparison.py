"""Automata for the texts of numbers below, at, or above a bound."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from phloem.grammar.dfa import Budget, Dfa
from phloem.grammar.json_schema.explore import Edges, Machine, explore, together
from phloem.grammar.json_schema.values import Number

_POINT, _MINUS, _PLUS, _ZERO, _NINE = b".-+09"
_MAX_FRACTION = 16


class Bound(NamedTuple):
    """Numbers x with sign(x - limit) among `relations` (-1, 0, 1)."""

    limit: Number
    relations: tuple[int, ...]


class _State(NamedTuple):
    """Where a text stands: in which part of the notation, and how it compares so far."""

    part: str
    negative: bool = False
    place: int = 0
    """Digits of this part that were read, as far as that matters."""
    relation: int = 0
    """Of the magnitude read so far to that of the bound: -1 below, 0 equal, 1 above."""
    exponent: int = 0
    """The sign of the exponent: 1 or -1."""
    against: int = 0
    """In an exponent: how the digits read compare to those of the bound's exponent."""


def decimals_within(bounds: Sequence[Bound], budget: Budget, *, integers: bool = False) -> Dfa:
    """Decimals without an exponent within all bounds; with `integers`, only with zeros behind the
    point."""
    return explore(together([_decimals(bound, integers) for bound in bounds]), budget)


def scientific_within(bounds: Sequence[Bound], budget: Budget) -> Dfa:
    """The same for texts d.ddde+dd: a digit that is not 0, at most 16 more, an exponent not 0."""
    return explore(together([_scientific(bound) for bound in bounds]), budget)


def _decimals(within: Bound, integers: bool) -> Machine[_State]:
    bound, relations = within
    last = _ZERO if integers else _NINE
    point = len(bound.digits) + bound.exponent
    whole = bound.digits[: max(point, 0)].ljust(point, "0") or "0"
    fraction = "0" * -point + bound.digits[max(point, 0) :] if bound.digits else ""

    def edges(state: _State) -> Edges[_State]:
        part, place, relation = state.part, state.place, state.relation
        if part in ("start", "sign"):
            below = 0 if whole == "0" else -1
            zero: Edges[_State] = [(_ZERO, _ZERO, state._replace(part="zero", relation=below))]
            return _minus(state) + zero + _digits(state, "whole", whole, 1, first=1)
        if part in ("zero", "whole"):
            ended = _whole_relation(state, whole)
            result: Edges[_State] = [
                (_POINT, _POINT, state._replace(part="point", place=0, relation=ended))
            ]
            return result + (_digits(state, "whole", whole, place + 1) if part == "whole" else [])
        if relation:
            return [(_ZERO, last, state._replace(part="fraction", place=0))]
        following = _digits(state, "fraction", fraction, place + 1)
        return [
            (first, min(end, last), target) for first, end, target in following if first <= last
        ]

    def accepts(state: _State) -> bool:
        if state.part in ("start", "sign", "point"):
            return False
        if state.part == "fraction":
            relation, place = state.relation, state.place
        else:
            relation, place = _whole_relation(state, whole), 0
        if not relation and place < len(fraction):
            relation = -1
        return relation_of(state.negative, relation, bound) in relations

    return Machine(_State("start"), edges, accepts)


def _scientific(within: Bound) -> Machine[_State]:
    bound, relations = within
    power = len(bound.digits) + bound.exponent - 1
    digits = str(abs(power))

    def edges(state: _State) -> Edges[_State]:
        part, place = state.part, state.place
        if part in ("start", "sign"):
            return _minus(state) + _digits(state, "first", bound.digits, 1, first=1)
        if part in ("first", "mantissa", "point"):
            result: Edges[_State] = []
            if part != "point":
                relation = state.relation
                if not relation and place < len(bound.digits):
                    relation = -1
                after = state._replace(part="e", place=0, relation=relation, exponent=1)
                result = [(byte, byte, after) for byte in b"Ee"]
            if part == "first":
                return [*result, (_POINT, _POINT, state._replace(part="point"))]
            if place <= _MAX_FRACTION:
                result += _digits(state, "mantissa", bound.digits, place + 1, capped=False)
            return result
        if part == "e":
            minus = state._replace(part="zeros", exponent=-1)
            plus = state._replace(part="zeros")
            return [(_MINUS, _MINUS, minus), (_PLUS, _PLUS, plus), *edges(plus)]
        against = state._replace(relation=state.against)
        found = _digits(against, "power", digits, place + 1, first=int(part == "zeros"))
        result = [
            (first, last, target._replace(relation=state.relation, against=target.relation))
            for first, last, target in found
        ]
        return result + ([(_ZERO, _ZERO, state)] if part == "zeros" else [])

    def accepts(state: _State) -> bool:
        if state.part != "power":
            return False
        if not bound.digits or (power < 0) != (state.exponent < 0) or not power:
            against = state.exponent if bound.digits else 1
        else:
            against = state.exponent * _length_relation(state.place, state.against, digits)
        return relation_of(state.negative, against or state.relation, bound) in relations

    return Machine(_State("start"), edges, accepts)


def relation_of(negative: bool, magnitude: int, bound: Number) -> int:
    """sign(x - bound) from the sign of x and how the magnitudes compare."""
    if bound.digits and negative != bound.negative:
        return -1 if negative else 1
    return -magnitude if negative else magnitude


def _minus(state: _State) -> Edges[_State]:
    return [(_MINUS, _MINUS, _State("sign", negative=True))] if state.part == "start" else []


def _digits(
    state: _State, part: str, digits: str, place: int, *, first: int = 0, capped: bool = True
) -> Edges[_State]:
    """One more digit, the `place`-th, beside that of the bound (0 behind its last).

    With `capped`, places beyond one past the bound's digits are not told apart.
    """
    counted = min(place, len(digits) + 1) if capped else place
    target = state._replace(part=part, place=counted)
    if state.relation:
        return [(_ZERO + first, _NINE, target)]
    own = int(digits[place - 1]) if place <= len(digits) else 0
    result: Edges[_State] = []
    if own > first:
        result.append((_ZERO + first, _ZERO + own - 1, target._replace(relation=-1)))
    if own >= first:
        result.append((_ZERO + own, _ZERO + own, target))
    if own < 9:
        result.append((_ZERO + max(own + 1, first), _NINE, target._replace(relation=1)))
    return result


def _whole_relation(state: _State, whole: str) -> int:
    """How digits before the point compare, which begin with 0 only where they are it."""
    if state.part == "zero":
        return state.relation
    if whole == "0":
        return 1
    return _length_relation(state.place, state.relation, whole)


def _length_relation(place: int, relation: int, digits: str) -> int:
    return relation if place == len(digits) else (1 if place > len(digits) else -1)
