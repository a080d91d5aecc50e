"""The algebra of forms: union, intersection and difference of sets of JSON values, by type."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TypeVar

from phloem.grammar.dfa import Dfa
from phloem.grammar.errors import ConstraintTooComplex
from phloem.grammar.json_schema import arrays, objects, strings
from phloem.grammar.json_schema.judge import Judge
from phloem.grammar.json_schema.numbers import Numbers
from phloem.grammar.json_schema.terms import ArrayTerm, Form, ObjectTerm

_MAX_TERMS = 500
_Term = TypeVar("_Term")


@dataclass(frozen=True)
class Algebra:
    """Combines forms; those it is given and gives hold no term that is known to be void."""

    judge: Judge
    numbers: Numbers

    @property
    def everything(self) -> Form:
        """All JSON values."""
        return Form(
            True,
            frozenset([False, True]),
            self.numbers.universe,
            strings.ALL,
            (ArrayTerm(),),
            (ObjectTerm(),),
        )

    @property
    def nothing(self) -> Form:
        """No value."""
        return Form(False, frozenset(), Dfa.empty(), (), (), ())

    def join(self, *forms: Form) -> Form:
        """Values of one form or more."""
        numbers, booleans = Dfa.empty(), frozenset[bool]()
        for form in forms:
            self.judge.budget.check(0)
            numbers, booleans = self._union(numbers, form.numbers), booleans | form.booleans
        return Form(
            any(form.null for form in forms),
            booleans,
            numbers,
            _distinct(term for form in forms for term in form.strings),
            _distinct(term for form in forms for term in form.arrays),
            _distinct(term for form in forms for term in form.objects),
        )

    def meet(self, one: Form, two: Form) -> Form:
        """Values of both."""
        judge = self.judge
        pairs = len(one.arrays) * len(two.arrays) + len(one.objects) * len(two.objects)
        self.check_terms(pairs, 4)
        array_pairs = [arrays.meet(judge, a, b) for a in one.arrays for b in two.arrays]
        object_pairs = [objects.meet(judge, a, b) for a in one.objects for b in two.objects]
        return Form(
            one.null and two.null,
            one.booleans & two.booleans,
            self._intersection(one.numbers, two.numbers),
            strings.intersect(one.strings, two.strings, judge.budget),
            _distinct(term for term in array_pairs if term is not None),
            _distinct(term for term in object_pairs if term is not None),
        )

    def minus(self, one: Form, two: Form) -> Form:
        """Values of the first that are not of the second.

        Raises:
            UnsupportedConstraint: if that cannot be expressed.
        """
        array_terms, object_terms = list(one.arrays), list(one.objects)
        for array in two.arrays:
            array_terms = [
                piece
                for term in array_terms
                for piece in arrays.difference(self.judge, term, array)
            ]
            self.check_terms(len(array_terms))
        for other in two.objects:
            object_terms = [
                piece
                for term in object_terms
                for piece in objects.difference(self.judge, term, other)
            ]
            self.check_terms(len(object_terms))
        return Form(
            one.null and not two.null,
            one.booleans - two.booleans,
            one.numbers.difference(two.numbers, self.judge.budget),
            strings.difference(one.strings, two.strings, self.judge.budget),
            _distinct(array_terms),
            _distinct(object_terms),
        )

    def only(self, form: Form, types: frozenset[str]) -> Form:
        """The values of a form that are of some types, named as in `type`."""
        numbers = form.numbers
        if "number" not in types:
            whole = "integer" in types
            numbers = self._intersection(numbers, self.numbers.integers) if whole else Dfa.empty()
        return replace(
            form,
            null=form.null and "null" in types,
            booleans=form.booleans if "boolean" in types else frozenset(),
            numbers=numbers,
            strings=form.strings if "string" in types else (),
            arrays=form.arrays if "array" in types else (),
            objects=form.objects if "object" in types else (),
        )

    def _union(self, one: Dfa, two: Dfa) -> Dfa:
        universe = self.numbers.universe
        if one is two or one is universe or two.is_empty:
            return one
        return two if two is universe else one.union(two, self.judge.budget)

    def _intersection(self, one: Dfa, two: Dfa) -> Dfa:
        universe = self.numbers.universe
        if one is two or two is universe:
            return one
        return two if one is universe else one.intersect(two, self.judge.budget)

    def check_terms(self, terms: int, factor: int = 1) -> None:
        """Refuse so many alternatives at one place.

        Raises:
            ConstraintTooComplex: naming the number.
        """
        self.judge.budget.check(0)
        if terms > _MAX_TERMS * factor:
            raise ConstraintTooComplex(
                f"the alternatives of the schema multiply to {terms} and more at one place: use "
                "fewer in 'allOf', 'anyOf', 'oneOf', 'not' and 'dependencies'"
            )


def is_nothing(form: Form) -> bool:
    """Whether a form holds no value, as far as its terms tell."""
    scalars = form.null or form.booleans or form.strings or not form.numbers.is_empty
    return not (scalars or form.arrays or form.objects)


def _distinct(terms: Iterable[_Term]) -> tuple[_Term, ...]:
    """Terms without repetition, in their order."""
    return tuple(dict.fromkeys(terms))
