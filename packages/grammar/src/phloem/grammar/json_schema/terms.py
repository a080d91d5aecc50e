"""What a schema says about values, type by type: a form, whose children are formulas.

Arrays and objects are unions of terms; a term is a conjunction of what can be said about all items
and about single places, names and counts. This module holds the data; `arrays` and `objects` its
algebra.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from phloem.grammar.dfa import Dfa
from phloem.grammar.json_schema.formula import FALSE, TRUE, Formula
from phloem.grammar.json_schema.strings import ANY, Strings


@dataclass(frozen=True, slots=True)
class ItemDemand:
    """At least one item at place `start` or later must meet a formula."""

    start: int
    formula: Formula


@dataclass(frozen=True, slots=True)
class ArrayTerm:
    """Arrays whose item i meets `prefix[i]`, every later one `rest`, and that fulfil demands."""

    prefix: tuple[Formula, ...] = ()
    rest: Formula = TRUE
    fewest: int = 0
    most: int | None = None
    demands: tuple[ItemDemand, ...] = ()
    unique: str | None = None
    """The pointer of the schema that says that no two items are equal."""

    def at(self, place: int) -> Formula:
        """What an item there must meet."""
        return self.prefix[place] if place < len(self.prefix) else self.rest


@dataclass(frozen=True, slots=True)
class NameDemand:
    """At least one property whose name is in `names` must be, and its value meet a formula."""

    names: Dfa
    formula: Formula


@dataclass(frozen=True, slots=True)
class NameClass:
    """What the values of properties with such names must meet."""

    names: Dfa
    formula: Formula


@dataclass(frozen=True, slots=True)
class ObjectTerm:
    """Objects by what their properties must meet; a name in no class is not allowed.

    Classes are disjoint. Where a name has an entry in `properties` that says everything, and
    classes say nothing about it.
    """

    properties: dict[str, Formula] = field(default_factory=dict)
    required: frozenset[str] = frozenset()
    classes: tuple[NameClass, ...] = (NameClass(ANY, TRUE),)
    fewest: int = 0
    most: int | None = None
    demands: tuple[NameDemand, ...] = ()

    def __hash__(self) -> int:
        # The one that is made of the fields would fail, for dictionaries have none.
        properties = frozenset(self.properties.items())
        return hash((properties, self.required, self.classes, self.fewest, self.most, self.demands))

    def at(self, name: str) -> Formula:
        """What the value of such a property must meet; FALSE where it is not allowed."""
        known = self.properties.get(name)
        return of_class(self.classes, name) if known is None else known


def of_class(classes: tuple[NameClass, ...], name: str) -> Formula:
    """What the class of a name says; FALSE where there is none."""
    text = name.encode()
    return next((each.formula for each in classes if each.names.accepts(text)), FALSE)


@dataclass(frozen=True, slots=True)
class Form:
    """All values that a schema allows, by their type."""

    null: bool
    booleans: frozenset[bool]
    numbers: Dfa
    strings: Strings
    arrays: tuple[ArrayTerm, ...]
    objects: tuple[ObjectTerm, ...]
