"""Which JSON schemas a library enforces, and the schema as that library should get it.

A schema is copied, keyword by keyword: what a library is not known to enforce is refused by pointer
and keyword, and what says nothing about legal values is left out, so that no library finds options
for itself in a schema. "Enforces" means that every accepted text is valid and that every valid
value can be written, if not in every spelling (1.0 for 1, or an escape for a letter).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias
from urllib.parse import unquote

from phloem.grammar.constraint import Constraint
from phloem.grammar.errors import ConstraintTooComplex, GrammarError, UnsupportedConstraint
from phloem.grammar.json_schema.draft import ANNOTATIONS
from phloem.grammar.json_schema.values import escape
from phloem.grammar.libraries.meaning import check_meaning
from phloem.grammar.libraries.recursion import endless

Schema: TypeAlias = dict[str, Any]
NodeCheck: TypeAlias = Callable[[Schema, str], Schema]
"""Raises for what a library does not enforce in a subschema (itself, not those below) at a pointer;
returns it, or what the library should see instead."""

LARGEST_EXACT = 1 << 53
"""Libraries read numbers as floats, which have all integers up to this one."""

TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")
_SAYS_NOTHING = ANNOTATIONS | {"$schema"}
_COUNTS = frozenset(
    ["minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"],
)
_BOUNDS = frozenset(["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"])
_ONE_SCHEMA = frozenset(("items", "additionalItems", "additionalProperties"))
_SCHEMA_LIST = frozenset(("prefixItems", "anyOf", "allOf", "oneOf", "items"))
_SCHEMA_MAP = frozenset(("properties", "patternProperties", "$defs", "definitions"))
_VALUE = frozenset(("enum", "const", "required", "type", "pattern", "format", "$ref"))


@dataclass(frozen=True)
class SchemaRules:
    """What one library enforces."""

    library: str
    keywords: frozenset[str]
    formats: frozenset[str]
    check_node: NodeCheck


def adapt_schema(constraint: Constraint, schema: Any, rules: SchemaRules) -> Schema:
    """The schema of a constraint as a library should get it.

    Raises:
        UnsupportedConstraint: for what the library does not enforce, or has no certain meaning.
        GrammarError: if it is no schema, or nothing satisfies it.
        ConstraintTooComplex: if it is nested too deep.
    """
    check_meaning(schema)
    walk = _Walk(rules, constraint.formats == "annotate")
    try:
        adapted = walk.schema(schema, "")
    except RecursionError as error:
        raise ConstraintTooComplex(
            "the schema has a value that is nested too deep: make it flatter"
        ) from error
    walk.check_references()
    walk.check_recursion()
    if constraint.property_order == "free" and walk.has_properties is not None:
        raise UnsupportedConstraint(
            walk.has_properties,
            "properties",
            f"{rules.library} cannot take properties in any order and see that all required ones "
            "come: use property_order='fixed', or the fsm backend",
        )
    return adapted


@dataclass
class _Walk:
    rules: SchemaRules
    annotate_formats: bool
    nodes: dict[str, Schema] = field(default_factory=dict)
    references: dict[str, str] = field(default_factory=dict)
    has_properties: str | None = None

    def schema(self, schema: Any, pointer: str) -> Schema:
        """A copy of the subschema at a pointer."""
        if schema is True:
            schema = {}
        if schema is False:
            raise GrammarError(
                f"the schema false at {pointer or 'the root'} allows no value: drop it"
            )
        if not isinstance(schema, dict):
            raise GrammarError(
                f"the schema at {pointer or 'the root'} is {str(schema)[:50]!r}: give an object"
            )
        copy = {
            keyword: self._value(keyword, value, pointer)
            for keyword, value in schema.items()
            if not self._is_annotation(keyword, pointer)
        }
        if "properties" in copy or "required" in copy:
            self.has_properties = self.has_properties or pointer
        self.nodes[pointer] = self.rules.check_node(copy, pointer)
        return self.nodes[pointer]

    def _is_annotation(self, keyword: str, pointer: str) -> bool:
        if keyword == "$id":
            return not pointer  # below the root it would move what references are relative to
        return keyword in _SAYS_NOTHING or (keyword == "format" and self.annotate_formats)

    def _value(self, keyword: str, value: Any, pointer: str) -> Any:
        at = f"{pointer}/{escape(keyword)}"
        if keyword not in self.rules.keywords:
            raise UnsupportedConstraint(
                pointer, keyword, f"{self.rules.library} does not enforce it: drop it, or use fsm"
            )
        if keyword in _SCHEMA_LIST and isinstance(value, list):
            return [self.schema(part, f"{at}/{index}") for index, part in enumerate(value)]
        if keyword in _SCHEMA_MAP and isinstance(value, dict):
            return {name: self.schema(part, f"{at}/{escape(name)}") for name, part in value.items()}
        if keyword in _ONE_SCHEMA:
            return False if value is False else self.schema(value, at)
        if keyword in _VALUE or keyword in _COUNTS or keyword in _BOUNDS:
            self._check_value(keyword, value, pointer)
            return value
        raise GrammarError(f"{at} is {str(value)[:50]!r}: give what JSON Schema asks")

    def _check_value(self, keyword: str, value: Any, pointer: str) -> None:
        legal = True
        if keyword in _COUNTS:
            legal = type(value) is int and value >= 0
        elif keyword in _BOUNDS:
            legal = type(value) in (int, float) and (keyword != "multipleOf" or value > 0)
        elif keyword == "type":
            types = value if isinstance(value, list) else [value]
            legal = bool(types) and all(one in TYPES for one in types)
        elif keyword == "required":
            legal = isinstance(value, list) and all(isinstance(name, str) for name in value)
        elif keyword == "enum":
            legal = isinstance(value, list) and bool(value)
        elif keyword in ("pattern", "format", "$ref"):
            legal = isinstance(value, str)
        if not legal:
            raise GrammarError(
                f"{pointer}/{keyword} is {str(value)[:50]!r}, which is not legal there or allows "
                "no value: correct it"
            )
        if keyword == "format" and value not in self.rules.formats:
            raise UnsupportedConstraint(
                pointer,
                "format",
                f"{self.rules.library} does not enforce {value!r} exactly: use the fsm backend, or "
                "formats='annotate'",
            )
        if keyword == "$ref":
            self._refer(value, pointer)

    def _refer(self, reference: str, pointer: str) -> None:
        if not reference.startswith("#") or reference[1:2] not in ("", "/"):
            raise UnsupportedConstraint(
                pointer,
                "$ref",
                f"{reference!r} is not a pointer into this schema: write '#/$defs/...'",
            )
        self.references[pointer] = reference[1:]

    def check_references(self) -> None:
        """Raise if a reference points at what is no subschema.

        Raises:
            UnsupportedConstraint: naming the first one.
        """
        for pointer, target in self.references.items():
            if unquote(target) not in self.nodes:
                raise UnsupportedConstraint(
                    pointer, "$ref", f"there is no schema at {target!r}: correct the pointer"
                )

    def check_recursion(self) -> None:
        """Raise if a subschema can be satisfied by no finite value, through its references.

        Raises:
            GrammarError: naming one.
        """
        at = endless(self.nodes)
        if at is not None:
            raise GrammarError(
                f"the schema at {at or 'the root'} refers to itself on every way, so no value "
                "satisfies it: make a part optional"
            )


def refuse_beside(node: Schema, keyword: str, allowed: frozenset[str], at: str, why: str) -> None:
    """Raise if `keyword` has company other than `allowed` and definitions.

    Raises:
        UnsupportedConstraint: naming `keyword`.
    """
    others = sorted(node.keys() - allowed - {keyword, "$defs", "definitions"})
    if keyword in node and others:
        raise UnsupportedConstraint(
            at, keyword, f"beside {', '.join(others)} {why}; use the fsm backend"
        )
