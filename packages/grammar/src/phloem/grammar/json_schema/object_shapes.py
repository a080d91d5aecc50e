"""From object terms to the normal form: demands on names are turned into required properties."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import combinations

from phloem.grammar.dfa import Dfa
from phloem.grammar.errors import ConstraintTooComplex
from phloem.grammar.json_schema.formula import FALSE, Formula
from phloem.grammar.json_schema.judge import Judge
from phloem.grammar.json_schema.objects import settle
from phloem.grammar.json_schema.shape import NodeId, ObjectShape, OtherProperties, Property
from phloem.grammar.json_schema.strings import ANY, any_except, texts_of
from phloem.grammar.json_schema.terms import NameDemand, ObjectTerm

_MAX_NAMES = 64
_MAX_DEMANDS = 3


def shapes(
    judge: Judge, term: ObjectTerm, node_of: Callable[[Formula], NodeId]
) -> Iterator[ObjectShape]:
    """The normal form, as alternatives.

    Raises:
        ConstraintTooComplex: if there are too many ways to fulfil its demands.
    """
    for case, demands in _cases(judge, term, ()):
        others = list(_others(judge, case, demands, node_of)) if case.classes else []
        full = case.most == len(case.required)
        yield ObjectShape(
            tuple(
                Property(name, node_of(formula), name in case.required)
                for name, formula in case.properties.items()
                if formula != FALSE and (name in case.required or not full)
            ),
            () if full and not demands else tuple(others),
            case.fewest,
            case.most,
            len(demands),
        )


def _cases(
    judge: Judge, term: ObjectTerm, open_demands: tuple[NameDemand, ...]
) -> Iterator[tuple[ObjectTerm, tuple[NameDemand, ...]]]:
    """Terms without demands, each with the demands that undeclared properties must fulfil."""
    if not term.demands:
        if len(open_demands) > _MAX_DEMANDS:
            raise ConstraintTooComplex(
                f"an object has more than {_MAX_DEMANDS} demands on undeclared properties: negate "
                "fewer of 'additionalProperties', 'patternProperties' and 'propertyNames'"
            )
        yield term, open_demands
        return
    demand, *others = term.demands
    left = replace(term, demands=tuple(others))
    names = [name for name in term.properties if demand.names.accepts(name.encode())]
    infinite = False
    wanted = demand.names.intersect(any_except(tuple(term.properties)), judge.budget)
    for each in term.classes:
        inside = each.names.intersect(wanted, judge.budget)
        if not inside.is_finite:
            infinite = True
        else:
            names += [text.decode() for text in _few(inside)]
    for name in names:
        formula = judge.formulas.all_of(term.at(name), demand.formula)
        case = settle(
            judge,
            replace(
                left,
                properties={**term.properties, name: formula},
                required=term.required | {name},
            ),
        )
        if case is not None:
            yield from _cases(judge, case, open_demands)
    if infinite:
        yield from _cases(judge, left, (*open_demands, demand))


def _others(
    judge: Judge,
    term: ObjectTerm,
    demands: tuple[NameDemand, ...],
    node_of: Callable[[Formula], NodeId],
) -> Iterator[OtherProperties]:
    free = any_except(tuple(term.properties))
    subsets = [
        subset
        for size in range(len(demands) + 1)
        for subset in combinations(enumerate(demands), size)
    ]
    for each in term.classes:
        undeclared = free if each.names is ANY else each.names.intersect(free, judge.budget)
        for subset in subsets:
            names, formula = undeclared, each.formula
            for _, demand in subset:
                names = names.intersect(demand.names, judge.budget)
                formula = judge.formulas.all_of(formula, demand.formula)
            if names.is_empty or judge.is_void(formula):
                continue
            if len(subset) > 1 and names.is_finite:
                raise ConstraintTooComplex(
                    "few names fulfil several demands on undeclared properties at once: negate "
                    "fewer of 'additionalProperties', 'patternProperties' and 'propertyNames'"
                )
            if not subset or not names.is_finite:
                bits = sum(1 << number for number, _ in subset)
                yield OtherProperties(names, node_of(formula), bits)


def _few(names: Dfa) -> list[bytes]:
    texts = texts_of(names, _MAX_NAMES)
    if texts is None:
        raise ConstraintTooComplex(
            f"one of more than {_MAX_NAMES} undeclared properties must be: use fewer names in "
            "patterns that are negated"
        )
    return texts
