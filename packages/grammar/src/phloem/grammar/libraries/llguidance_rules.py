"""What llguidance enforces, found out by running it.

It knows what it does not implement, and says so; left to refuse are the combinations in which it is
more lenient, or reads a schema differently, and numbers that it would round. Strings get no `\\u`
escapes here: with them, an undeclared property could have a declared name, written with an escape.
So control characters but for `\\b \\f \\n \\r \\t` cannot be written by a text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from phloem.grammar.errors import UnsupportedConstraint
from phloem.grammar.libraries.regex_subset import Reading, translate
from phloem.grammar.libraries.schema_subset import (
    LARGEST_EXACT,
    Schema,
    SchemaRules,
    refuse_beside,
)

STRING_ESCAPES = '"\\bfnrt'
"""The letters after a backslash that strings may have."""

REGEX = Reading(dot=".")
_PATTERN = Reading(
    searches=True,
    dot=r"[^\n\r\u2028\u2029]",
    classes=((r"\d", "0-9"), (r"\w", "0-9A-Za-z_")),
)
_UNWRITABLE = re.compile(r"[\x00-\x07\x0b\x0e-\x1f\x7f]")
_NOTHING: frozenset[str] = frozenset()
_EXCLUSIVE = ("exclusiveMinimum", "exclusiveMaximum")


def _check_node(node: Schema, at: str) -> Schema:
    refuse_beside(node, "$ref", _NOTHING, at, "it means different things in different drafts")
    for keyword in ("enum", "const", "properties", "required"):
        value = node.get(keyword)
        written = list(value) if keyword == "properties" and value else value
        if any(_UNWRITABLE.search(text) for text in _strings(written)):
            raise UnsupportedConstraint(
                at,
                keyword,
                "it has control characters, which need \\u escapes, and those are switched off "
                "here: use the fsm backend",
            )
    _check_numbers(node, at)
    if node.get("minProperties", 0) > max(1, len(set(node.get("required", ())))):
        raise UnsupportedConstraint(
            at,
            "minProperties",
            "llguidance counts a repeated key twice: require the properties by name, or use fsm",
        )
    if "pattern" in node:
        node["pattern"] = translate(node["pattern"], _PATTERN, (at, "pattern"))
    if "patternProperties" in node:
        node["patternProperties"] = {
            translate(pattern, _PATTERN, (at, "patternProperties")): schema
            for pattern, schema in node["patternProperties"].items()
        }
    return node


def _check_numbers(node: Schema, at: str) -> None:
    for keyword in ("enum", "const", "minimum", "maximum", *_EXCLUSIVE, "multipleOf"):
        large = [one for one in _numbers(node.get(keyword)) if abs(one) > LARGEST_EXACT]
        if large:
            raise UnsupportedConstraint(
                at, keyword, f"llguidance would round {large[0]}: stay below 2 ** 53, or use fsm"
            )
    for keyword in _EXCLUSIVE:
        if keyword in node and node.get("type") != "integer":
            raise UnsupportedConstraint(
                at,
                keyword,
                "llguidance lets digits without end follow the bound, which readers of floats "
                "take for the bound itself: say type: integer, or use the fsm backend",
            )


def _numbers(value: Any) -> Iterator[int | float]:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        yield value
    elif isinstance(value, (list, dict)):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _numbers(part)


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for part in value:
            yield from _strings(part)
    elif isinstance(value, dict):
        for name, part in value.items():
            yield name
            yield from _strings(part)


SCHEMAS = SchemaRules(
    library="llguidance",
    keywords=frozenset(
        [
            "type",
            "enum",
            "const",
            "anyOf",
            "allOf",
            "oneOf",
            "$ref",
            "$defs",
            "definitions",
            "properties",
            "required",
            "additionalProperties",
            "patternProperties",
            "minProperties",
            "maxProperties",
            "items",
            "prefixItems",
            "additionalItems",
            "minItems",
            "maxItems",
            "minLength",
            "maxLength",
            "pattern",
            "format",
            "minimum",
            "maximum",
            "exclusiveMinimum",
            "exclusiveMaximum",
            "multipleOf",
        ]
    ),
    formats=frozenset(("ipv4", "uuid")),
    check_node=_check_node,
)
