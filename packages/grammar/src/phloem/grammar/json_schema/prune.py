"""Takes from a graph what no value can satisfy, so that a machine never runs into a dead end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from phloem.grammar.dfa import Budget, Dfa
from phloem.grammar.json_schema.shape import (
    ArrayShape,
    Node,
    NodeId,
    ObjectShape,
    SchemaGraph,
    Witness,
)

_COUNTED = 1 << 40
"""Names beyond this number are as good as infinitely many."""


def pruned(graph: SchemaGraph, budget: Budget) -> SchemaGraph | None:
    """The same values, by satisfiable nodes and alternatives only, numbered from the root.

    None if there is no value at all.
    """
    alive = _satisfiable(graph.nodes, budget)
    if not alive[graph.root]:
        return None
    nodes = [
        _restricted(node, alive) if alive[id_] else node for id_, node in enumerate(graph.nodes)
    ]
    order = [graph.root]
    numbers = {graph.root: 0}
    for id_ in order:
        for child in _children(nodes[id_]):
            if child not in numbers:
                numbers[child] = len(order)
                order.append(child)
    return SchemaGraph(tuple(_renumbered(nodes[id_], numbers) for id_ in order), 0)


def _satisfiable(nodes: Sequence[Node], budget: Budget) -> list[bool]:
    """The least fixpoint: a value is finite, so a node may not need itself."""
    alive = [False] * len(nodes)
    changed = True
    while changed:
        changed = False
        # Children tend to come after their parents.
        for id_ in range(len(nodes) - 1, -1, -1):
            if not alive[id_] and _has_value(nodes[id_], alive):
                alive[id_] = changed = True
        budget.check(0)
    return alive


def _has_value(node: Node, alive: Sequence[bool]) -> bool:
    return bool(
        node.null
        or node.booleans
        or node.numbers is not None
        or node.strings
        or any(_has_array(shape, alive) for shape in node.arrays)
        or any(_has_object(shape, alive) for shape in node.objects)
    )


def _has_array(shape: ArrayShape, alive: Sequence[bool]) -> bool:
    open_places = next(
        (place for place, node in enumerate(shape.prefix) if not alive[node]), len(shape.prefix)
    )
    endless = open_places == len(shape.prefix) and shape.rest is not None and alive[shape.rest]
    most = shape.max_items
    if not endless:
        most = open_places if most is None else min(most, open_places)
    if most is not None and shape.min_items > most:
        return False
    if not shape.demands:
        return True
    return _fulfillable(shape, alive, most)


def _fulfillable(shape: ArrayShape, alive: Sequence[bool], most: int | None) -> bool:
    """Whether some way of choosing witnesses fulfils all demands within `most` items."""
    everything = (1 << shape.demands) - 1
    reached = {0}
    # Behind the prefix, more items than demands are never needed.
    last = len(shape.prefix) + shape.demands
    for place in range(last if most is None else min(most, last)):
        for witness in shape.witnesses:
            inside = place < len(shape.prefix)
            node = witness.prefix[place] if inside else witness.rest
            if node is not None and alive[node]:
                reached |= {bits | witness.fulfils for bits in reached}
    return everything in reached


def _has_object(shape: ObjectShape, alive: Sequence[bool]) -> bool:
    if not all(alive[each.node] for each in shape.properties if each.required):
        return False
    classes = [each for each in shape.others if alive[each.node]]
    names = sum(alive[each.node] for each in shape.properties)
    names += sum(_names_in(each.names) for each in classes if not each.fulfils)
    if names < shape.min_properties:
        return False
    required = sum(each.required for each in shape.properties)
    room = None if shape.max_properties is None else shape.max_properties - required
    needed = _fewest_to_cover((1 << shape.demands) - 1, [each.fulfils for each in classes])
    return needed is not None and (room is None or needed <= room)


def _fewest_to_cover(everything: int, sets: Sequence[int]) -> int | None:
    """How many of some bit sets it takes to cover all bits; None if they do not."""
    reached, count = {0}, 0
    while everything not in reached:
        following = reached | {bits | each for bits in reached for each in sets}
        if following == reached:
            return None
        reached, count = following, count + 1
    return count


def _names_in(names: Dfa) -> int:
    """The number of texts of a language, up to a limit that stands for infinity."""
    if not names.is_finite:
        return _COUNTED
    total, level = 0, {0: 1}
    while level:
        following: dict[int, int] = {}
        for state, ways in level.items():
            total += ways if names.accepting[state] else 0
            for byte in names.first_bytes(state):
                target = names.step(state, byte)
                following[target] = following.get(target, 0) + ways
        if total >= _COUNTED:
            return _COUNTED
        level = following
    return total


def _restricted(node: Node, alive: Sequence[bool]) -> Node:
    return replace(
        node,
        arrays=tuple(_array(shape, alive) for shape in node.arrays if _has_array(shape, alive)),
        objects=tuple(_object(shape, alive) for shape in node.objects if _has_object(shape, alive)),
    )


def _array(shape: ArrayShape, alive: Sequence[bool]) -> ArrayShape:
    size = next(
        (place for place, node in enumerate(shape.prefix) if not alive[node]), len(shape.prefix)
    )
    ends = size < len(shape.prefix) or shape.rest is None or not alive[shape.rest]
    most = shape.max_items
    if ends:
        most = size if most is None else min(most, size)
    witnesses = []
    for witness in shape.witnesses:
        prefix = tuple(_if_alive(each, alive) for each in witness.prefix[:size])
        rest = None if ends else _if_alive(witness.rest, alive)
        if rest is not None or any(each is not None for each in prefix):
            witnesses.append(Witness(witness.fulfils, prefix, rest))
    return replace(
        shape,
        prefix=shape.prefix[:size],
        rest=None if ends else shape.rest,
        max_items=most,
        witnesses=tuple(witnesses),
    )


def _if_alive(node: NodeId | None, alive: Sequence[bool]) -> NodeId | None:
    return node if node is not None and alive[node] else None


def _object(shape: ObjectShape, alive: Sequence[bool]) -> ObjectShape:
    return replace(
        shape,
        properties=tuple(each for each in shape.properties if alive[each.node]),
        others=tuple(each for each in shape.others if alive[each.node]),
    )


def _children(node: Node) -> list[NodeId]:
    found: list[NodeId | None] = []
    for array in node.arrays:
        found += [*array.prefix, array.rest]
        for witness in array.witnesses:
            found += [*witness.prefix, witness.rest]
    for shape in node.objects:
        found += [each.node for each in shape.properties]
        found += [each.node for each in shape.others]
    return [each for each in found if each is not None]


def _renumbered(node: Node, numbers: dict[NodeId, NodeId]) -> Node:
    def optional(id_: NodeId | None) -> NodeId | None:
        return None if id_ is None else numbers[id_]

    def array(shape: ArrayShape) -> ArrayShape:
        return replace(
            shape,
            prefix=tuple(numbers[each] for each in shape.prefix),
            rest=optional(shape.rest),
            witnesses=tuple(
                replace(each, prefix=tuple(map(optional, each.prefix)), rest=optional(each.rest))
                for each in shape.witnesses
            ),
        )

    def record(shape: ObjectShape) -> ObjectShape:
        return replace(
            shape,
            properties=tuple(replace(each, node=numbers[each.node]) for each in shape.properties),
            others=tuple(replace(each, node=numbers[each.node]) for each in shape.others),
        )

    return replace(
        node,
        arrays=tuple(map(array, node.arrays)),
        objects=tuple(map(record, node.objects)),
    )
