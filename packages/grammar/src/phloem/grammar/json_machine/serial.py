"""The compiled form of a JSON automaton: the graph of a schema, each DFA once, and the weights."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

from phloem.grammar.dfa import Dfa
from phloem.grammar.errors import GrammarError
from phloem.grammar.json_schema.shape import (
    ArrayShape,
    Node,
    ObjectShape,
    OtherProperties,
    Property,
    SchemaGraph,
    StringShape,
    Witness,
)

_LENGTH = struct.Struct("<I")
_MOST_BYTES = 1 << 30


class Compiled(NamedTuple):
    """What is compiled, and how its texts are written."""

    graph: SchemaGraph
    weights: tuple[int, ...]
    """By node; see `weights`."""
    is_compact: bool
    is_free: bool


def packed(compiled: Compiled) -> bytes:
    """The form that `unpacked` reads."""
    dfas: dict[Dfa, int] = {}

    def number(dfa: Dfa) -> int:
        return dfas.setdefault(dfa, len(dfas))

    nodes = [_node_out(node, number) for node in compiled.graph.nodes]
    rest = [compiled.graph.root, compiled.weights, compiled.is_compact, compiled.is_free]
    head = zlib.compress(json.dumps([nodes, *rest], separators=(",", ":")).encode(), 1)
    parts = [head, *(dfa.serialize() for dfa in dfas)]
    return b"".join(_LENGTH.pack(len(part)) + part for part in parts)


def unpacked(data: bytes) -> Compiled:
    """What `packed` packed.

    Raises:
        GrammarError: if the bytes are damaged.
    """
    try:
        head, *tables = _split(data)
        dfas = [Dfa.deserialize(table) for table in tables]
        text = zlib.decompressobj().decompress(head, _MOST_BYTES)
        nodes, root, weights, is_compact, is_free = json.loads(text)
        graph = SchemaGraph(tuple(_node_in(node, dfas) for node in nodes), root)
        if not 0 <= root < len(nodes) == len(weights):
            raise ValueError(f"{len(nodes)} nodes, {len(weights)} weights, the root is {root}")
        return Compiled(graph, tuple(weights), bool(is_compact), bool(is_free))
    except (ValueError, TypeError, IndexError, struct.error, zlib.error) as error:
        if isinstance(error, GrammarError):
            raise
        raise GrammarError(
            f"the compiled schema is damaged ({error}): compile the constraint again"
        ) from error


def _split(data: bytes) -> list[bytes]:
    parts, at = [], 0
    while at < len(data):
        (length,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size
        if at + length > len(data):
            raise ValueError(f"a part of {length} bytes is cut off")
        parts.append(data[at : at + length])
        at += length
    return parts


def _node_out(node: Node, number: Any) -> list[Any]:
    return [
        node.null,
        sorted(node.booleans),
        None if node.numbers is None else number(node.numbers),
        [[number(s.dfa), s.min_chars, s.max_chars] for s in node.strings],
        [
            [
                a.prefix,
                a.rest,
                a.min_items,
                a.max_items,
                a.demands,
                [[w.fulfils, w.prefix, w.rest] for w in a.witnesses],
            ]
            for a in node.arrays
        ],
        [
            [
                [[p.name, p.node, p.required] for p in o.properties],
                [[number(c.names), c.node, c.fulfils] for c in o.others],
                o.min_properties,
                o.max_properties,
                o.demands,
            ]
            for o in node.objects
        ],
    ]


def _node_in(node: Sequence[Any], dfas: Sequence[Dfa]) -> Node:
    null, booleans, numbers, strings, arrays, objects = node
    return Node(
        null=null,
        booleans=frozenset(booleans),
        numbers=None if numbers is None else dfas[numbers],
        strings=tuple(StringShape(dfas[dfa], fewest, most) for dfa, fewest, most in strings),
        arrays=tuple(
            ArrayShape(
                tuple(prefix),
                rest,
                fewest,
                most,
                demands,
                tuple(Witness(fulfils, tuple(places), last) for fulfils, places, last in witnesses),
            )
            for prefix, rest, fewest, most, demands, witnesses in arrays
        ),
        objects=tuple(
            ObjectShape(
                tuple(Property(*prop) for prop in properties),
                tuple(OtherProperties(dfas[names], *rest) for names, *rest in others),
                fewest,
                most,
                demands,
            )
            for properties, others, fewest, most, demands in objects
        ),
    )
