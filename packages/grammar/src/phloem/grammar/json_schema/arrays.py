"""The algebra of array terms: what both allow, what only one of them allows, and shapes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations

from phloem.grammar.errors import ConstraintTooComplex, UnsupportedConstraint
from phloem.grammar.json_schema.distinct import distinct_sequences
from phloem.grammar.json_schema.formula import FALSE, TRUE, Formula
from phloem.grammar.json_schema.judge import Judge
from phloem.grammar.json_schema.shape import ArrayShape, NodeId, Witness
from phloem.grammar.json_schema.terms import ArrayTerm, ItemDemand

_MAX_DEMANDS = 4
_MAX_START = 1000


def meet(judge: Judge, one: ArrayTerm, two: ArrayTerm) -> ArrayTerm | None:
    """Arrays of both; None if there are none."""
    judge.budget.check(0)
    places = range(max(len(one.prefix), len(two.prefix)))
    both = judge.formulas.all_of
    limits = [most for most in (one.most, two.most) if most is not None]
    return settle(
        judge,
        ArrayTerm(
            tuple(both(one.at(place), two.at(place)) for place in places),
            both(one.rest, two.rest),
            max(one.fewest, two.fewest),
            min(limits, default=None),
            tuple(dict.fromkeys(one.demands + two.demands)),
            one.unique if one.unique is not None else two.unique,
        ),
    )


def difference(judge: Judge, one: ArrayTerm, two: ArrayTerm) -> list[ArrayTerm]:
    """Arrays of `one` that are not of `two`.

    Raises:
        UnsupportedConstraint: if that would need arrays with two equal items.
    """
    if meet(judge, one, two) is None:
        return [one]
    if two.unique is not None:
        raise UnsupportedConstraint(
            two.unique, "uniqueItems", "it cannot be negated, as 'not', 'oneOf' and 'if' do"
        )
    terms = [meet(judge, one, violation) for violation in _violations(judge, two)]
    return [term for term in terms if term is not None]


def settle(judge: Judge, term: ArrayTerm) -> ArrayTerm | None:
    """The same arrays, with the length that void places allow; None if there are none."""
    prefix, rest, most = term.prefix, term.rest, term.most
    for place, formula in enumerate(prefix):
        if judge.is_void(formula):
            prefix, rest = prefix[:place], FALSE
            break
    if rest == FALSE or judge.is_void(rest):
        rest, most = FALSE, min(len(prefix), len(prefix) if most is None else most)
    if most is not None and most <= len(prefix):
        prefix, rest = prefix[:most], FALSE
    fewest = max([term.fewest, *(demand.start + 1 for demand in term.demands)])
    if most is not None and fewest > most:
        return None
    settled = ArrayTerm(prefix, rest, fewest, most, term.demands, term.unique)
    open_demands = []
    for demand in term.demands:
        if not _possible(judge, settled, demand):
            return None
        if demand.formula != TRUE:
            open_demands.append(demand)
    return ArrayTerm(prefix, rest, fewest, most, tuple(open_demands), term.unique)


def shapes(
    judge: Judge, term: ArrayTerm, node_of: Callable[[Formula], NodeId]
) -> Iterator[ArrayShape]:
    """The normal form.

    Raises:
        UnsupportedConstraint: if items would have to be compared with each other.
        ConstraintTooComplex: if there are too many demands on items.
    """
    if term.unique is not None and (term.most is None or term.most > 1):
        sequences = distinct_sequences(judge, term)
        if sequences is None:
            raise UnsupportedConstraint(
                term.unique,
                "uniqueItems",
                "it needs a memory of all items: let them be of few strings, or remove it",
            )
        for sequence in sequences:
            yield from shapes(judge, sequence, node_of)
        return
    starts = [demand.start for demand in term.demands]
    if len(starts) > _MAX_DEMANDS or max(starts, default=0) > _MAX_START:
        raise ConstraintTooComplex(
            f"an array has {len(starts)} demands of which some item must meet each, at "
            f"most {_MAX_DEMANDS} are possible: use fewer 'contains'"
        )
    prefix = term.prefix
    if term.rest != FALSE:
        prefix += (term.rest,) * (max(starts, default=0) - len(prefix))

    def node(formula: Formula) -> NodeId | None:
        return None if judge.is_void(formula) else node_of(formula)

    witnesses = []
    for demands in _subsets(term.demands):
        both = [demand.formula for _, demand in demands]
        start = max(demand.start for _, demand in demands)
        strict = [judge.formulas.all_of(formula, *both) for formula in (*prefix, term.rest)]
        nodes = [node(each) if place >= start else None for place, each in enumerate(strict)]
        if any(each is not None for each in nodes):
            bits = sum(1 << number for number, _ in demands)
            witnesses.append(Witness(bits, tuple(nodes[:-1]), nodes[-1]))
    yield ArrayShape(
        tuple(map(node_of, prefix)),
        None if term.rest == FALSE else node_of(term.rest),
        term.fewest,
        term.most,
        len(term.demands),
        tuple(witnesses),
    )


def _violations(judge: Judge, term: ArrayTerm) -> Iterator[ArrayTerm]:
    """Terms that together are the arrays outside of a term (whose items need not be unique)."""
    negation = judge.formulas.negation
    if term.fewest:
        yield ArrayTerm(most=term.fewest - 1)
    if term.most is not None:
        yield ArrayTerm(fewest=term.most + 1)
    for place, formula in enumerate(term.prefix):
        yield ArrayTerm((*(TRUE,) * place, negation(formula)), fewest=place + 1)
    if term.rest != TRUE:
        yield ArrayTerm(demands=(ItemDemand(len(term.prefix), negation(term.rest)),))
    for demand in term.demands:
        yield ArrayTerm((TRUE,) * demand.start, negation(demand.formula))


def _possible(judge: Judge, term: ArrayTerm, demand: ItemDemand) -> bool:
    """Whether an item somewhere could fulfil a demand."""
    places = [*range(demand.start, len(term.prefix)), max(demand.start, len(term.prefix))]
    formulas = {judge.formulas.all_of(term.at(place), demand.formula) for place in places}
    return any(not judge.is_void(formula) for formula in formulas)


def _subsets(
    demands: tuple[ItemDemand, ...],
) -> Iterator[tuple[tuple[int, ItemDemand], ...]]:
    for size in range(1, len(demands) + 1):
        yield from combinations(enumerate(demands), size)
