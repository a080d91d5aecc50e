"""The short way to the normal form: schemas that leave no operator to solve, read in one pass.

Most schemas only list properties, items, types, values and bounds, and refer to each other. They
are nearly in normal form, and the machinery of `normalize` would cost several times what they need.
What is not known here is not refused here: such a schema goes the general way, which solves it or
says why not. The values are the same either way; which equal nodes are merged may differ.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

from phloem.grammar.constraint import Formats
from phloem.grammar.dfa import Budget, Dfa
from phloem.grammar.errors import ConstraintTooComplex, GrammarError
from phloem.grammar.json_schema.comparison import Bound
from phloem.grammar.json_schema.draft import ANNOTATIONS
from phloem.grammar.json_schema.formats import check_format, format_language
from phloem.grammar.json_schema.notation import Notation
from phloem.grammar.json_schema.numbers import Numbers
from phloem.grammar.json_schema.patterns import containing
from phloem.grammar.json_schema.prune import pruned
from phloem.grammar.json_schema.shape import (
    ArrayShape,
    Node,
    NodeId,
    ObjectShape,
    OtherProperties,
    Property,
    SchemaGraph,
    StringShape,
)
from phloem.grammar.json_schema.strings import ANY, any_except, constrained, shapes
from phloem.grammar.json_schema.unions import union_of
from phloem.grammar.json_schema.values import Number, is_number

_MOST_DEPTH = 32
_MOST_ITEMS = 10**9
_FIGURES = 15
_MOST_POWER = 16
_MOST_TERMS = 64
_REPEATED = re.compile(r"[A-Za-z0-9_.-]+")
"""Names that a reference to them just repeats."""

_DEFINITIONS = ("$defs", "definitions")
_ASIDE = frozenset(["$schema", *_DEFINITIONS])
"""What the root may say beside what its values are."""
_IN_PLACE = frozenset(["anyOf", "oneOf", "allOf"])
_BOUNDS = {
    "minimum": (0, 1),
    "exclusiveMinimum": (1,),
    "maximum": (-1, 0),
    "exclusiveMaximum": (-1,),
}
"""The keywords of bounds, and which relations to the bound they allow."""
_NUMERIC = frozenset(["type", *_BOUNDS])
_TEXTUAL = frozenset(["type", "minLength", "maxLength", "pattern", "format"])
_LIST = frozenset(["type", "items", "minItems", "maxItems"])
_RECORD = frozenset(["type", "properties", "required", "additionalProperties"])
_BOTH = frozenset([False, True])
_FREE_TEXT = (StringShape(ANY),)
_KINDS = {"null": type(None), "boolean": bool, "string": str}


class _NotPlainError(Exception):
    """Something that the general way has to look at."""


def plain_graph(schema: Any, formats: Formats, budget: Budget) -> SchemaGraph | None:
    """The normal form of a schema, of any draft from 6 on and of sound values (`is_sound`).

    None if it takes the general way.

    Raises:
        ConstraintTooComplex: if it grows over the budget.
    """
    try:
        return _Reader(formats, budget).graph(schema)
    except _NotPlainError:
        return None


class _Reader:
    """Collects the nodes of one schema."""

    def __init__(self, formats: Formats, budget: Budget) -> None:
        self._formats = formats
        self._budget = budget
        self._nodes: list[Node | None] = []
        """None: what a reference leads to and is being read."""
        self._numbers: dict[Node, NodeId] = {}
        self._definitions: dict[str, Any] = {}
        self._referred: dict[str, NodeId] = {}
        self._any_value: NodeId | None = None

    def graph(self, schema: Any) -> SchemaGraph:
        """All nodes of a schema."""
        if isinstance(schema, dict) and not _ASIDE.isdisjoint(schema):
            for keyword in _DEFINITIONS:
                for name, each in _mapping(schema, keyword).items():
                    if not _REPEATED.fullmatch(name):
                        raise _NotPlainError
                    self._definitions[f"#/{keyword}/{name}"] = each
            schema = {key: each for key, each in schema.items() if key not in _ASIDE}
        root = self._place(schema, 0)
        if len(self._referred) < len(self._definitions):
            raise _NotPlainError  # what nothing refers to has to be a schema as well
        graph = SchemaGraph(tuple(node for node in self._nodes if node is not None), root)
        # What refers to itself may have no finite value.
        finite = pruned(graph, self._budget) if self._referred else graph
        if finite is None:
            raise _NotPlainError
        return finite

    def _place(self, schema: Any, depth: int) -> NodeId:
        """The node of a schema."""
        self._budget.check(len(self._nodes))
        if schema is True or schema == {}:
            return self._any()
        if isinstance(schema, dict) and "$ref" in schema:
            return self._target(schema, depth)
        node = self._node(schema, depth)
        number = self._numbers.setdefault(node, len(self._nodes))
        if number == len(self._nodes):
            self._nodes.append(node)
        return number

    def _any(self) -> NodeId:
        if self._any_value is None:
            this = self._any_value = len(self._nodes)
            record = ObjectShape((), (OtherProperties(any_except(()), this),))
            numbers, array = Notation().any_number, ArrayShape((), this)
            self._nodes.append(Node(True, _BOTH, numbers, _FREE_TEXT, (array,), (record,)))
        return self._any_value

    def _target(self, schema: dict[str, Any], depth: int) -> NodeId:
        """The node that a reference, which says nothing else, leads to."""
        reference = schema["$ref"]
        if not isinstance(reference, str) or schema.keys() - ANNOTATIONS != {"$ref"}:
            raise _NotPlainError
        known = self._referred.get(reference)
        if known is not None:
            return known
        if reference not in self._definitions:
            raise _NotPlainError
        number = self._referred[reference] = len(self._nodes)
        self._nodes.append(None)
        self._nodes[number] = self._node(self._definitions[reference], depth)
        return number

    def _node(self, schema: Any, depth: int) -> Node:
        if not isinstance(schema, dict) or depth > _MOST_DEPTH:
            raise _NotPlainError
        said, type_ = schema.keys() - ANNOTATIONS, schema.get("type")
        if type_ == "object" and said <= _RECORD:
            return self._object(schema, depth + 1)
        if type_ == "array" and said <= _LIST:
            return self._array(schema, depth + 1)
        if type_ == "string" and said <= _TEXTUAL:
            return self._string(schema)
        if type_ in ("integer", "number") and said <= _NUMERIC:
            return _found(_number(type_ == "integer", tuple(_bounds(schema))))
        if type_ in ("null", "boolean") and said == {"type"}:
            return _word(type_ == "null")
        if said == {"type"} and isinstance(type_, list) and type_:
            return self._joined([self._of_type(each, depth + 1) for each in type_])
        if said == {"type", "enum"} or said == {"enum"}:
            return self._values(schema["enum"], type_)
        if said == {"type", "const"} or said == {"const"}:
            return self._values([schema["const"]], type_)
        if len(said) == 1 and not _IN_PLACE.isdisjoint(said):
            return self._in_place(said.pop(), schema, depth + 1)
        raise _NotPlainError

    def _of_type(self, type_: Any, depth: int) -> Node:
        if not isinstance(type_, str):
            raise _NotPlainError
        return self._node({"type": type_}, depth)

    def _object(self, schema: dict[str, Any], depth: int) -> Node:
        properties, names = _mapping(schema, "properties"), schema.get("required", [])
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise _NotPlainError
        required = frozenset(names)
        if not required <= properties.keys():
            raise _NotPlainError
        others: tuple[OtherProperties, ...] = ()
        beyond = schema.get("additionalProperties", True)
        if beyond is not False:
            node = self._place(beyond, depth)
            others = (OtherProperties(any_except(tuple(properties)), node),)
        declared = tuple(
            Property(name, self._place(each, depth), name in required)
            for name, each in properties.items()
        )
        shape = ObjectShape(declared, others, len(required))
        return Node(False, frozenset(), None, (), (), (shape,))

    def _array(self, schema: dict[str, Any], depth: int) -> Node:
        fewest, most = _count(schema, "minItems") or 0, _count(schema, "maxItems")
        if most is not None and (most < fewest or not most):
            raise _NotPlainError
        rest = self._place(schema.get("items", True), depth)
        return Node(False, frozenset(), None, (), (ArrayShape((), rest, fewest, most),), ())

    def _string(self, schema: dict[str, Any]) -> Node:
        fewest, most = _count(schema, "minLength") or 0, _count(schema, "maxLength")
        if "pattern" not in schema and "format" not in schema:
            return _found(_text(fewest, most))
        languages = []
        try:
            if "pattern" in schema:
                pattern = _text_of(schema, "pattern")
                languages.append(containing(pattern, "", "pattern", self._budget))
            if "format" in schema and self._formats == "assert":
                format_ = _text_of(schema, "format")
                check_format(format_, "")
                languages += [each for each in (format_language(format_),) if each is not None]
        except ConstraintTooComplex:
            raise
        except GrammarError:
            raise _NotPlainError from None
        strings = constrained(fewest, most, languages, self._budget)
        return _found(_of_strings(shapes(strings, self._budget)))

    def _values(self, values: Any, type_: Any) -> Node:
        """Some values without children, of one type if one is given."""
        if not isinstance(values, list) or not all(map(_is_word, values)):
            raise _NotPlainError
        if type_ is not None:
            kind = _KINDS.get(type_) if isinstance(type_, str) else None
            values = [each for each in values if kind is not None and isinstance(each, kind)]
        texts = [each.encode() for each in values if isinstance(each, str)]
        strings = (StringShape(Dfa.of_literals(texts, self._budget)),) if texts else ()
        if not values:
            raise _NotPlainError
        booleans = frozenset(each for each in values if isinstance(each, bool))
        return Node(None in values, booleans, None, strings, (), ())

    def _in_place(self, keyword: str, schema: dict[str, Any], depth: int) -> Node:
        """Alternatives, as far as they need not be told apart."""
        options = schema[keyword]
        if not isinstance(options, list) or not options:
            raise _NotPlainError
        nodes = [self._option(each, depth) for each in options]
        if len(nodes) == 1:
            return nodes[0]
        if keyword == "allOf" or (keyword == "oneOf" and not _are_apart(nodes)):
            raise _NotPlainError
        return self._joined(nodes)

    def _option(self, schema: Any, depth: int) -> Node:
        if isinstance(schema, dict) and "$ref" in schema:
            node = self._nodes[self._target(schema, depth)]
            return _found(node)
        return self._node(schema, depth)

    def _joined(self, nodes: Sequence[Node]) -> Node:
        """The values of one node or more."""
        numbers = list({id(each.numbers): each.numbers for each in nodes if each.numbers}.values())
        arrays = tuple(dict.fromkeys(shape for each in nodes for shape in each.arrays))
        objects = tuple(dict.fromkeys(shape for each in nodes for shape in each.objects))
        if len(numbers) > 1 or len(arrays) + len(objects) > _MOST_TERMS:
            raise _NotPlainError
        return Node(
            any(each.null for each in nodes),
            frozenset(value for each in nodes for value in each.booleans),
            numbers[0] if numbers else None,
            self._joined_strings([each.strings for each in nodes if each.strings]),
            arrays,
            objects,
        )

    def _joined_strings(self, found: Sequence[tuple[StringShape, ...]]) -> tuple[StringShape, ...]:
        if len(found) <= 1 or _FREE_TEXT in found:
            return () if not found else found[0] if len(found) == 1 else _FREE_TEXT
        together = [shape for each in found for shape in each]
        if any(shape.min_chars or shape.max_chars is not None for shape in together):
            raise _NotPlainError
        return (StringShape(union_of([shape.dfa for shape in together], self._budget)),)


@lru_cache(maxsize=2)
def _word(is_null: bool) -> Node:
    return Node(is_null, frozenset() if is_null else _BOTH, None, (), (), ())


@lru_cache(maxsize=256)
def _number(whole: bool, bounds: tuple[Bound, ...]) -> Node | None:
    """The numbers within some bounds; None if there are none."""
    notation, numbers = Notation(), Numbers(Budget(), scientific=True)
    found = numbers.within(bounds, whole=whole)
    if found.is_empty:
        return None
    legal = notation.of_set(found) if bounds or whole else notation.any_number
    return Node(False, frozenset(), legal, (), (), ())


@lru_cache(maxsize=256)
def _text(fewest: int, most: int | None) -> Node | None:
    """The strings of so many characters; None if there are none."""
    budget = Budget()
    return _of_strings(shapes(constrained(fewest, most, (), budget), budget))


def _of_strings(strings: tuple[StringShape, ...]) -> Node | None:
    return Node(False, frozenset(), None, strings, (), ()) if strings else None


def _found(node: Node | None) -> Node:
    """The node, if there is one: one that is being read, or has no values, is not."""
    if node is None:
        raise _NotPlainError
    return node


def _are_apart(nodes: Sequence[Node]) -> bool:
    """Whether no two nodes have values of one type."""
    kinds = [
        [bool(kind) for kind in (n.null, n.booleans, n.numbers, n.strings, n.arrays, n.objects)]
        for n in nodes
    ]
    return all(sum(column) <= 1 for column in zip(*kinds, strict=True))


def _is_word(value: Any) -> bool:
    return value is None or isinstance(value, (bool, str))


def _mapping(schema: dict[str, Any], keyword: str) -> dict[str, Any]:
    value = schema.get(keyword, {})
    if not isinstance(value, dict):
        raise _NotPlainError
    return value


def _text_of(schema: dict[str, Any], keyword: str) -> str:
    value = schema[keyword]
    if not isinstance(value, str):
        raise _NotPlainError
    return value


def _count(schema: dict[str, Any], keyword: str) -> int | None:
    value = schema.get(keyword)
    if keyword not in schema:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _MOST_ITEMS:
        raise _NotPlainError
    return value


def _bounds(schema: dict[str, Any]) -> Iterator[Bound]:
    """Those of a number; of few digits, so that no reader takes them for others."""
    for keyword in _BOUNDS.keys() & schema.keys():
        value = schema[keyword]
        if not is_number(value):
            raise _NotPlainError
        limit = Number.of(value)
        if len(limit.digits) > _FIGURES or abs(limit.exponent) > _MOST_POWER:
            raise _NotPlainError
        yield Bound(limit, _BOUNDS[keyword])
