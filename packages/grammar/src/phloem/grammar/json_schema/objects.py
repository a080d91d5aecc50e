"""The algebra of object terms: what both allow, and what one allows and the other does not."""

from __future__ import annotations

from collections.abc import Iterator

from phloem.grammar.dfa import Dfa
from phloem.grammar.json_schema.formula import FALSE, TRUE, Formula
from phloem.grammar.json_schema.judge import Judge
from phloem.grammar.json_schema.strings import ANY, any_except
from phloem.grammar.json_schema.terms import NameClass, NameDemand, ObjectTerm, of_class
from phloem.grammar.json_schema.unions import union_of


def meet(judge: Judge, one: ObjectTerm, two: ObjectTerm) -> ObjectTerm | None:
    """Objects of both; None if there are none. Names come in the order of `one`, then `two`."""
    judge.budget.check(0)
    both = judge.formulas.all_of
    names = dict.fromkeys((*one.properties, *two.properties))
    limits = [most for most in (one.most, two.most) if most is not None]
    return settle(
        judge,
        ObjectTerm(
            {name: both(one.at(name), two.at(name)) for name in names},
            one.required | two.required,
            _classes_of_both(judge, one.classes, two.classes),
            max(one.fewest, two.fewest),
            min(limits, default=None),
            tuple(dict.fromkeys(one.demands + two.demands)),
        ),
    )


def difference(judge: Judge, one: ObjectTerm, two: ObjectTerm) -> list[ObjectTerm]:
    """Objects of `one` that are not of `two`."""
    if meet(judge, one, two) is None:
        return [one]
    terms = [meet(judge, one, violation) for violation in _violations(judge, two)]
    return [term for term in terms if term is not None]


def settle(judge: Judge, term: ObjectTerm) -> ObjectTerm | None:
    """The same objects, with every required name declared; None if there are none."""
    properties = dict(term.properties)
    for name in sorted(term.required - properties.keys()):
        properties[name] = of_class(term.classes, name)
    required = [properties[name] for name in term.required]
    if FALSE in required or any(map(judge.is_void, required)):
        return None
    for name, formula in properties.items():
        if name not in term.required and judge.is_void(formula):
            properties[name] = FALSE
    classes = tuple(each for each in term.classes if not judge.is_void(each.formula))
    fewest = max(term.fewest, len(term.required))
    allowed = sum(formula != FALSE for formula in properties.values())
    if (not classes and fewest > allowed) or (term.most is not None and term.most < fewest):
        return None
    settled = ObjectTerm(properties, term.required, classes, fewest, term.most, term.demands)
    if not all(_possible(judge, settled, demand) for demand in term.demands):
        return None
    demands = tuple(each for each in term.demands if not _fulfilled(judge, settled, each))
    return ObjectTerm(properties, term.required, classes, fewest, term.most, demands)


def partition(
    judge: Judge, patterns: list[tuple[Dfa, Formula]], otherwise: Formula
) -> tuple[NameClass, ...]:
    """Classes by which of some patterns a name matches; names without a match meet `otherwise`."""
    classes: list[tuple[Dfa, tuple[Formula, ...]]] = [(ANY, ())]
    for names, formula in patterns:
        split = []
        for known, formulas in classes:
            inside = known.intersect(names, judge.budget)
            outside = known.difference(names, judge.budget)
            split += [(inside, (*formulas, formula)), (outside, formulas)]
        classes = [each for each in split if not each[0].is_empty]
    return _merged(
        judge,
        [
            (names, judge.formulas.all_of(*formulas) if formulas else otherwise)
            for names, formulas in classes
        ],
    )


def _classes_of_both(
    judge: Judge, one: tuple[NameClass, ...], two: tuple[NameClass, ...]
) -> tuple[NameClass, ...]:
    pairs = []
    for left in one:
        for right in two:
            if left.names is ANY or left.names == right.names:
                names = right.names
            else:
                names = left.names.intersect(right.names, judge.budget)
            pairs.append((names, judge.formulas.all_of(left.formula, right.formula)))
    return _merged(judge, pairs)


def _merged(judge: Judge, pairs: list[tuple[Dfa, Formula]]) -> tuple[NameClass, ...]:
    """One class per formula, and none for names that are not allowed or do not exist."""
    by_formula: dict[Formula, list[Dfa]] = {}
    for names, formula in pairs:
        if formula != FALSE and not names.is_empty:
            by_formula.setdefault(formula, []).append(names)
    merged = [(union_of(names, judge.budget), formula) for formula, names in by_formula.items()]
    return tuple(NameClass(ANY if names == ANY else names, formula) for names, formula in merged)


def _violations(judge: Judge, term: ObjectTerm) -> Iterator[ObjectTerm]:
    """Terms that together are the objects outside of a term."""
    negation, budget = judge.formulas.negation, judge.budget
    if term.fewest > len(term.required):
        yield ObjectTerm(most=term.fewest - 1)
    if term.most is not None:
        yield ObjectTerm(fewest=term.most + 1)
    for name in term.properties:
        if name in term.required:
            yield ObjectTerm({name: FALSE})
    for name, formula in term.properties.items():
        if formula != TRUE:
            yield ObjectTerm({name: negation(formula)}, frozenset([name]))
    undeclared = any_except(tuple(term.properties))
    for each in term.classes:
        if each.formula != TRUE:
            names = each.names.intersect(undeclared, budget)
            yield ObjectTerm(demands=(NameDemand(names, negation(each.formula)),))
        undeclared = undeclared.difference(each.names, budget)
    if not undeclared.is_empty:
        yield ObjectTerm(demands=(NameDemand(undeclared, TRUE),))
    for demand in term.demands:
        yield ObjectTerm(classes=partition(judge, [(demand.names, negation(demand.formula))], TRUE))


def _possible(judge: Judge, term: ObjectTerm, demand: NameDemand) -> bool:
    """Whether some property could fulfil a demand."""
    for name, formula in term.properties.items():
        if demand.names.accepts(name.encode()) and not judge.is_void(
            judge.formulas.all_of(formula, demand.formula)
        ):
            return True
    return any(
        not demand.names.intersect(each.names, judge.budget).is_empty
        and not judge.is_void(judge.formulas.all_of(each.formula, demand.formula))
        for each in term.classes
    )


def _fulfilled(judge: Judge, term: ObjectTerm, demand: NameDemand) -> bool:
    """Whether what is required fulfils a demand in any case."""
    return any(
        demand.names.accepts(name.encode())
        and judge.formulas.all_of(term.properties[name], demand.formula) == term.properties[name]
        for name in term.required
    )
