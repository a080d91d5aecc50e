"""Subschemas that refer to themselves without end, for which libraries would make dead ends."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote

from phloem.grammar.json_schema.values import escape


def endless(nodes: Mapping[str, Mapping[str, Any]]) -> str | None:
    """The pointer of a subschema that only infinite values satisfy, as far as references decide.

    Args:
        nodes: all subschemas by pointer; references in them are pointers into this mapping.
    """
    finite: set[str] = set()
    waiting = list(nodes)
    while True:
        left = [at for at in waiting if not _is_finite(nodes[at], at, finite)]
        if len(left) == len(waiting):
            return left[0] if left else None
        finite.update(set(waiting) - set(left))
        waiting = left


def _is_finite(node: Mapping[str, Any], at: str, finite: set[str]) -> bool:
    if "enum" in node or "const" in node:
        return True
    for keyword in ("anyOf", "oneOf"):
        if keyword in node and not any(one in finite for one in _parts(node, at, keyword)):
            return False
    if not all(one in finite for one in _parts(node, at, "allOf")):
        return False
    if "$ref" in node:
        return unquote(node["$ref"][1:]) in finite
    types = node.get("type", "null")
    types = types if isinstance(types, list) else [types]
    needed = {"object": _needed_properties(node, at), "array": _needed_items(node, at)}
    return any(all(one in finite for one in needed.get(name, ())) for name in types)


def _parts(node: Mapping[str, Any], at: str, keyword: str) -> Iterator[str]:
    return (f"{at}/{keyword}/{index}" for index in range(len(node.get(keyword, ()))))


def _needed_properties(node: Mapping[str, Any], at: str) -> list[str]:
    declared = node.get("properties", {})
    return [
        f"{at}/properties/{escape(name)}" for name in node.get("required", ()) if name in declared
    ]


def _needed_items(node: Mapping[str, Any], at: str) -> list[str]:
    keyword = "items" if isinstance(node.get("items"), list) else "prefixItems"
    prefix = list(_parts(node, at, keyword))
    least = node.get("minItems", 0)
    rest = "additionalItems" if keyword == "items" else "items"
    needed = prefix[:least]
    if least > len(prefix) and isinstance(node.get(rest), dict):
        needed.append(f"{at}/{rest}")
    return needed
