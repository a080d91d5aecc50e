"""What xgrammar enforces, found out by running it: keywords, combinations and EBNF.

It ignores without a word what stands beside `enum`, `anyOf` and `$ref`, type-specific keywords
without a `type`, `multipleOf` beside bounds, and names in `required` that are not declared. Strings
with a `pattern` or a length may have raw quotes or control characters in them, which is no JSON. A
bound on numbers limits their digits. An undeclared property may have the name of a declared one if
that is written with an escape. All of these are refused.
"""

from __future__ import annotations

import re
from typing import Any

from phloem.grammar.errors import UnsupportedConstraint
from phloem.grammar.libraries.regex_subset import Reading
from phloem.grammar.libraries.schema_subset import (
    LARGEST_EXACT,
    Schema,
    SchemaRules,
    refuse_beside,
)

REGEX = Reading()

_BOUNDS = frozenset(["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"])
_KEYWORDS_OF = {
    "string": frozenset(("format",)),
    "integer": _BOUNDS,
    "array": frozenset(("items", "prefixItems", "minItems", "maxItems")),
    "object": frozenset(("properties", "required", "additionalProperties")),
}
_NOTHING: frozenset[str] = frozenset()


def _check_node(node: Schema, at: str) -> Schema:
    for keyword, allowed in (
        ("$ref", _NOTHING),
        ("anyOf", _NOTHING),
        ("enum", frozenset(("type",))),
        ("const", frozenset(("type",))),
    ):
        refuse_beside(node, keyword, allowed, at, "it is not enforced by xgrammar")
    if "%" in node.get("$ref", ""):
        raise UnsupportedConstraint(
            at, "$ref", "xgrammar does not decode %: rename the definition, or use fsm"
        )
    if "enum" in node or "const" in node:
        return _values_alone(node, at)
    _check_types(node, at)
    _check_integers(node, at)
    _check_array(node, at)
    _check_object(node, at)
    return node


def _values_alone(node: Schema, at: str) -> Schema:
    """The values without the type beside them, which xgrammar would ignore."""
    types = node.get("type", [])
    types = types if isinstance(types, list) else [types]
    for value in node.get("enum", [node.get("const")]):
        if types and not any(_is_of(value, one) for one in types):
            raise UnsupportedConstraint(
                at,
                "type",
                f"{value!r} is not of it, and xgrammar would allow it: drop it",
            )
    return {keyword: value for keyword, value in node.items() if keyword != "type"}


def _is_of(value: Any, name: str) -> bool:
    if value is None or isinstance(value, bool):
        return name == ("null" if value is None else "boolean")
    if isinstance(value, int | float):
        return name == "number" or (name == "integer" and value == int(value))
    if isinstance(value, str):
        return name == "string"
    return name == ("array" if isinstance(value, list) else "object")


def _check_types(node: Schema, at: str) -> None:
    types = node.get("type", [])
    types = types if isinstance(types, list) else [types]
    known = frozenset().union(*(_KEYWORDS_OF.get(one, _NOTHING) for one in types))
    general = frozenset(("type", "$ref", "anyOf", "$defs", "definitions"))
    for keyword in sorted(node.keys() - general - known):
        raise UnsupportedConstraint(
            at,
            keyword,
            "xgrammar enforces it only beside a type that it fits (and bounds only on integers): "
            "state the type, or use the fsm backend",
        )
    if "number" in types and node.keys() & _BOUNDS:
        raise UnsupportedConstraint(
            at,
            min(node.keys() & _BOUNDS),
            "xgrammar cuts the digits of a number with bounds: use the fsm backend",
        )


def _check_integers(node: Schema, at: str) -> None:
    for keyword in sorted(node.keys() & _BOUNDS):
        bound = node[keyword]
        if bound != int(bound) or abs(bound) > LARGEST_EXACT:
            raise UnsupportedConstraint(
                at, keyword, f"{bound} is not a whole number below 2 ** 53: round it"
            )


def _check_array(node: Schema, at: str) -> None:
    if isinstance(node.get("items"), list):
        raise UnsupportedConstraint(
            at, "items", "xgrammar does not take a list: name it prefixItems"
        )


def _check_object(node: Schema, at: str) -> None:
    properties = node.get("properties", {})
    for name in node.get("required", ()):
        if name not in properties:
            raise UnsupportedConstraint(
                at, "required", f"xgrammar ignores {name!r}: declare it in properties"
            )
    for name, schema in properties.items():
        if schema and node.get("additionalProperties") is not False:
            raise UnsupportedConstraint(
                at,
                "additionalProperties",
                f"xgrammar lets an undeclared property be named {name!r}, written with an escape: "
                "say additionalProperties: false",
            )


SCHEMAS = SchemaRules(
    library="xgrammar",
    keywords=frozenset().union(
        *_KEYWORDS_OF.values(), ("type", "enum", "const", "anyOf", "$ref", "$defs", "definitions")
    ),
    formats=frozenset(("uuid",)),
    check_node=_check_node,
)

_EBNF_TOKEN = re.compile(
    r"""
    (?P<text>"(?:\\.|[^"\\\n])*"|\[(?:\\.|[^\]\\\n])*\])
  | (?P<comment>\#[^\n]*)
  | (?P<lookahead>\(\s*=)
  | (?P<macro>[A-Za-z_][\w.-]*\()
  | (?P<other>.)
    """,
    re.VERBOSE | re.DOTALL,
)
_LONG_ESCAPE = re.compile(r"(?<!\\)(?:\\\\)*\\x[0-9a-fA-F]{3}")
_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\(?:x00|u0000|U00000000|0)")


def check_ebnf(grammar: str) -> None:
    """Raise for what xgrammar reads in a grammar beyond GBNF, or does not enforce.

    Raises:
        UnsupportedConstraint: with the offset in characters as its pointer.
    """
    for match in _EBNF_TOKEN.finditer(grammar):
        reason = ""
        if match.lastgroup == "lookahead":
            reason = "xgrammar ignores a look-ahead: write the rule without it"
        elif match.lastgroup == "macro":
            reason = "calls are not a part of GBNF: put a blank before the bracket of a group"
        elif match.group().startswith('"') and _NUL.search(match.group()):
            reason = "xgrammar cannot match a NUL in a literal: put it into a class, as in [\\x00]"
        elif match.lastgroup == "text" and _LONG_ESCAPE.search(match.group()):
            reason = "xgrammar reads all digits behind \\x: write \\u and four digits"
        if reason:
            raise UnsupportedConstraint(str(match.start()), match.group(), reason)
