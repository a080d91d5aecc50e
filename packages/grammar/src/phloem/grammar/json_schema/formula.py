"""Boolean formulas over schemas, interned as numbers, so that equal ones are built only once.

A formula says what a value must meet; `Formulas` simplifies them only as far as it needs no look
into the schemas. What they mean as values is `algebra`'s.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Literal, NamedTuple, TypeAlias

from phloem.grammar.errors import ConstraintTooComplex

Formula: TypeAlias = int
Operator: TypeAlias = Literal["atom", "not", "and", "or"]

TRUE: Formula = 0
"""Every value meets it."""
FALSE: Formula = 1
"""No value meets it."""


class Constant(NamedTuple):
    """An atom that exactly one value meets; different keys are different values."""

    key: str


class Parts(NamedTuple):
    """How a formula is made: of an atom, or of other formulas."""

    operator: Operator
    operands: tuple[Formula, ...]
    atom: Hashable


class Formulas:
    """Makes formulas and takes them apart."""

    def __init__(self, max_formulas: int = 20_000) -> None:
        self._max_formulas = max_formulas
        self._numbers: dict[Parts, Formula] = {}
        self._parts: list[Parts] = []
        self._intern(Parts("and", (), None))
        self._intern(Parts("or", (), None))

    def parts(self, formula: Formula) -> Parts:
        """TRUE is an `and` of nothing, FALSE an `or` of nothing."""
        return self._parts[formula]

    def atom(self, content: Hashable) -> Formula:
        """The formula that stands for something that its user knows by `content`."""
        return self._intern(Parts("atom", (), content))

    def negation(self, formula: Formula) -> Formula:
        """Met by exactly the values that do not meet `formula`."""
        if formula in (TRUE, FALSE):
            return FALSE if formula == TRUE else TRUE
        parts = self._parts[formula]
        if parts.operator == "not":
            return parts.operands[0]
        return self._intern(Parts("not", (formula,), None))

    def all_of(self, *formulas: Formula) -> Formula:
        """Met by the values that meet all of them."""
        operands = self._operands("and", formulas)
        constants = [each for each in operands if self._is_constant(each)]
        if len(constants) > 1:
            return FALSE
        if constants and len(operands) > 1:
            # A value is none of the other constants, whatever it is.
            operands = {
                each
                for each in operands
                if self._parts[each].operator != "not"
                or self._parts[each].operands[0] in constants
                or not self._is_constant(self._parts[each].operands[0])
            }
        return self._joined("and", operands, TRUE, FALSE)

    def any_of(self, *formulas: Formula) -> Formula:
        """Met by the values that meet one of them or more."""
        return self._joined("or", self._operands("or", formulas), FALSE, TRUE)

    def _is_constant(self, formula: Formula) -> bool:
        return isinstance(self._parts[formula].atom, Constant)

    def _operands(self, operator: Operator, formulas: Iterable[Formula]) -> set[Formula]:
        operands: set[Formula] = set()
        for formula in formulas:
            parts = self._parts[formula]
            operands.update(parts.operands if parts.operator == operator else (formula,))
        return operands

    def _joined(
        self, operator: Operator, operands: set[Formula], neutral: Formula, absorbing: Formula
    ) -> Formula:
        operands.discard(neutral)
        parts_of = map(self._parts.__getitem__, operands)
        clash = any(each.operator == "not" and each.operands[0] in operands for each in parts_of)
        if clash or absorbing in operands:
            return absorbing
        if len(operands) == 1:
            return operands.pop()
        return self._intern(Parts(operator, tuple(sorted(operands)), None)) if operands else neutral

    def _intern(self, parts: Parts) -> Formula:
        number = self._numbers.get(parts)
        if number is None:
            number = self._numbers[parts] = len(self._parts)
            self._parts.append(parts)
            if number >= self._max_formulas:
                raise ConstraintTooComplex(
                    f"the schema combines into more than {self._max_formulas} parts: use fewer "
                    "alternatives in 'allOf', 'anyOf' and 'oneOf'"
                )
        return number
