"""What graphs of nodes are like, however their nodes are numbered and merged."""

from __future__ import annotations

from dataclasses import replace

from phloem.grammar.json_schema.shape import Node, SchemaGraph


def shape_of(graph: SchemaGraph) -> tuple[object, ...]:
    """Equal for graphs that say the same: each node with the classes of the nodes it refers to.

    Nodes are told apart as in Moore's algorithm: first by what they say without their children,
    then by the classes of these, until nothing changes. Classes are numbered from the root.
    """
    classes = [0] * len(graph.nodes)
    while True:
        said = [_with(node, classes) for node in graph.nodes]
        numbers = {each: number for number, each in enumerate(dict.fromkeys(said))}
        refined = [numbers[each] for each in said]
        if len(numbers) == len(set(classes)):
            break
        classes = refined
    return _from_root(graph, classes)


def _from_root(graph: SchemaGraph, classes: list[int]) -> tuple[object, ...]:
    numbers = {classes[graph.root]: 0}
    order = [graph.root]
    for place in order:
        for child in _children(graph.nodes[place]):
            if classes[child] not in numbers:
                numbers[classes[child]] = len(order)
                order.append(child)
    renumbered = [numbers.get(each, -1) for each in classes]
    return tuple(_with(graph.nodes[place], renumbered) for place in order)


def _with(node: Node, numbers: list[int]) -> Node:
    return replace(
        node,
        arrays=tuple(
            replace(
                shape,
                prefix=tuple(numbers[each] for each in shape.prefix),
                rest=None if shape.rest is None else numbers[shape.rest],
            )
            for shape in node.arrays
        ),
        objects=tuple(
            replace(
                shape,
                properties=tuple(replace(p, node=numbers[p.node]) for p in shape.properties),
                others=tuple(replace(each, node=numbers[each.node]) for each in shape.others),
            )
            for shape in node.objects
        ),
    )


def _children(node: Node) -> list[int]:
    found = [place for shape in node.arrays for place in (*shape.prefix, shape.rest)]
    for shape in node.objects:
        found += [each.node for each in (*shape.properties, *shape.others)]
    return [place for place in found if place is not None]
