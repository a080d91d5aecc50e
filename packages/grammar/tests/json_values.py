"""Whether a Python value is in a normal form: the oracle beside the machines that follow text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from phloem.grammar.json_schema.shape import ArrayShape, NodeId, ObjectShape, SchemaGraph


def accepts(graph: SchemaGraph, value: Any, id_: NodeId | None = None) -> bool:
    """Whether a JSON value is one of a node's, by default of the root's."""
    node = graph.nodes[graph.root if id_ is None else id_]
    if value is None:
        return node.null
    if isinstance(value, bool):
        return value in node.booleans
    if isinstance(value, (int, float)):
        return node.numbers is not None and node.numbers.accepts(json.dumps(value).encode())
    if isinstance(value, str):
        text = value.encode()
        return any(
            shape.dfa.accepts(text)
            and len(value) >= shape.min_chars
            and (shape.max_chars is None or len(value) <= shape.max_chars)
            for shape in node.strings
        )
    if isinstance(value, list):
        return any(_array(graph, shape, value) for shape in node.arrays)
    return any(_object(graph, shape, value) for shape in node.objects)


def _array(graph: SchemaGraph, shape: ArrayShape, items: Sequence[Any]) -> bool:
    if len(items) < shape.min_items:
        return False
    if shape.max_items is not None and len(items) > shape.max_items:
        return False
    fulfilled = {0}
    for place, item in enumerate(items):
        inside = place < len(shape.prefix)
        node = shape.prefix[place] if inside else shape.rest
        if node is None or not accepts(graph, item, node):
            return False
        for witness in shape.witnesses:
            stricter = witness.prefix[place] if inside else witness.rest
            if stricter is not None and accepts(graph, item, stricter):
                fulfilled |= {bits | witness.fulfils for bits in fulfilled}
    return (1 << shape.demands) - 1 in fulfilled


def _object(graph: SchemaGraph, shape: ObjectShape, members: dict[str, Any]) -> bool:
    if len(members) < shape.min_properties:
        return False
    if shape.max_properties is not None and len(members) > shape.max_properties:
        return False
    declared = {each.name: each for each in shape.properties}
    if any(each.required and each.name not in members for each in shape.properties):
        return False
    fulfilled = {0}
    for name, value in members.items():
        if name in declared:
            if not accepts(graph, value, declared[name].node):
                return False
            continue
        ways = [
            each.fulfils
            for each in shape.others
            if each.names.accepts(name.encode()) and accepts(graph, value, each.node)
        ]
        if not ways:
            return False
        fulfilled = {bits | way for bits in fulfilled for way in ways} | (
            fulfilled if 0 in ways else set()
        )
    return (1 << shape.demands) - 1 in fulfilled
