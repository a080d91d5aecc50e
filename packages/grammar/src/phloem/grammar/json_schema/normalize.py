"""A JSON schema brought into its normal form: references followed, boolean operators solved.

Every formula that a value may have to meet is expanded once into a form (`terms`); formulas of
items and properties wait in a list until they are expanded as nodes of their own. What cannot be
solved exactly is refused by name, never passed over.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from phloem.grammar.constraint import Formats
from phloem.grammar.dfa import Budget
from phloem.grammar.errors import ConstraintTooComplex, GrammarError
from phloem.grammar.json_schema import arrays, object_shapes, strings
from phloem.grammar.json_schema.document import Document
from phloem.grammar.json_schema.draft import Draft, draft_of
from phloem.grammar.json_schema.expansion import Expansion
from phloem.grammar.json_schema.formula import Formula
from phloem.grammar.json_schema.notation import Notation
from phloem.grammar.json_schema.numbers import Numbers, divides_one
from phloem.grammar.json_schema.plain import plain_graph
from phloem.grammar.json_schema.prune import pruned
from phloem.grammar.json_schema.shape import Node, NodeId, SchemaGraph
from phloem.grammar.json_schema.values import Number, is_number, is_sound


def load_schema(source: str) -> Any:
    """JSON text as `normalize` wants it, with exact numbers.

    Raises:
        GrammarError: if it is not JSON.
    """
    try:
        return json.loads(source, parse_float=Decimal)
    except (ValueError, RecursionError) as error:
        raise GrammarError(f"the schema is not JSON ({error}): give JSON text") from error


def normalize(
    schema: Any,
    *,
    formats: Formats = "assert",
    draft: Draft = Draft.ANY,
    budget: Budget | None = None,
) -> SchemaGraph:
    """The normal form of a schema (see `shape`).

    `draft` is that of a schema without `$schema`. Without a `budget`, it has 20 seconds.

    Raises:
        UnsupportedConstraint: for what cannot be enforced to the letter; names place and keyword.
        GrammarError: if the schema is malformed, or no value is valid.
        ConstraintTooComplex: if it grows over the budget.
    """
    limits = Budget.of_seconds(20) if budget is None else budget
    if is_sound(schema) and draft_of(schema, draft) is not Draft.D4:
        graph = plain_graph(schema, formats, limits)
        if graph is not None:
            return graph
    return solved(schema, formats, draft, limits)


def solved(schema: Any, formats: Formats, draft: Draft, limits: Budget) -> SchemaGraph:
    """What `normalize` gives, the general way."""
    try:
        document = Document(schema, draft)
        expansion = Expansion(document, formats, _numbers(document, limits), limits)
        return _Maker(expansion, Notation.of(document)).graph()
    except RecursionError as error:
        raise ConstraintTooComplex(
            "the schema is nested too deeply: use fewer references to references, and flatter "
            "'allOf', 'anyOf' and 'oneOf'"
        ) from error


def _numbers(document: Document, budget: Budget) -> Numbers:
    """Scientific notation is left out where a `multipleOf` could not be judged in it."""
    multiples = [
        location.schema["multipleOf"]
        for location in document.locations
        if isinstance(location.schema, dict) and is_number(location.schema.get("multipleOf"))
    ]
    numbers = [Number.of(value) for value in multiples]
    scientific = all(each.digits and divides_one(each) for each in numbers)
    return Numbers(budget, scientific, by_text=document.draft is Draft.D4)


@dataclass
class _Maker:
    """Collects the nodes of one graph."""

    expansion: Expansion
    notation: Notation

    def __post_init__(self) -> None:
        self._ids: dict[Formula, NodeId] = {}
        self._order: list[Formula] = []

    def graph(self) -> SchemaGraph:
        """All nodes that the root needs, without those that no value can satisfy."""
        root = self._node_of(self.expansion.root)
        nodes: list[Node] = []
        for formula in self._order:
            nodes.append(self._node(formula))
            self.expansion.budget.check(len(nodes))
        graph = pruned(SchemaGraph(tuple(nodes), root), self.expansion.budget)
        if graph is None:
            place = self.expansion.void_place()
            hint = f", as none is at {place}" if place else ""
            raise GrammarError(
                f"no value is valid under the schema{hint}: remove what contradicts itself, an "
                "empty 'enum', or a required property or item without end"
            )
        return graph

    def _node_of(self, formula: Formula) -> NodeId:
        number = self._ids.setdefault(formula, len(self._order))
        if number == len(self._order):
            self._order.append(formula)
        return number

    def _node(self, formula: Formula) -> Node:
        expansion = self.expansion
        form = expansion.expand(formula)
        numbers = form.numbers
        if numbers == expansion.algebra.numbers.universe:
            numbers = self.notation.any_number
        elif not numbers.is_empty:
            numbers = self.notation.of_set(numbers)
        return Node(
            form.null,
            form.booleans,
            None if numbers.is_empty else numbers,
            strings.shapes(form.strings, expansion.budget),
            tuple(
                shape
                for term in form.arrays
                for shape in arrays.shapes(expansion, term, self._node_of)
            ),
            tuple(
                shape
                for term in form.objects
                for shape in object_shapes.shapes(expansion, term, self._node_of)
            ),
        )
