"""The heavy part of a tree at a bounded cost, for a page that asks again and again.

`snapshot` reads every node to show exactly the heaviest; this reads at most a budget of them, the
longest edges first, and shows the heaviest of those. Only the thread that writes may call it.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from heapq import heappop, heappush, nlargest
from itertools import count, islice
from typing import TYPE_CHECKING, Final, NamedTuple

from ..key import Namespace
from ..node import Node, Root

if TYPE_CHECKING:
    from ..structure import Structure

READ_AT_MOST: Final = 1000
"""Nodes that are read of a tree, however large: about a millisecond."""
CHILDREN_READ_AT_MOST: Final = 100
"""Of one node, those that came last; so that one with very many leaves some of the budget."""


class OutlineNode(NamedTuple):
    """A node, as it was."""

    id: tuple[int, int]
    """The serial number of the insert that brought it, and `end`: stays while its end does."""
    parent: int
    """Its place in the list of nodes; -1: the top of its namespace."""
    start: int
    end: int
    carried: int
    """Tokens of it and of all nodes below it that were read."""
    children: int
    """Nodes directly below it, shown or not."""
    locks: int
    """Locks on its copy in the device tier."""
    on_device: bool
    hits: int
    idle: float
    """Seconds since it was last used."""
    retained: bool
    """Whether it is evicted last, for now."""


class OutlineSpace(NamedTuple):
    """A namespace and those of its nodes that are shown, parents first."""

    namespace: Namespace
    nodes: list[OutlineNode]


class Outline(NamedTuple):
    """A tree, or the heavy part of it."""

    policy: str
    nodes: int
    """Nodes in the whole tree."""
    namespaces: int
    """Namespaces in the whole tree."""
    spaces: list[OutlineSpace]


class _Seen:
    __slots__ = ("carried", "node", "parent", "top")

    def __init__(self, node: Node, parent: _Seen | None, top: Root) -> None:
        self.node = node
        self.parent = parent
        self.top = top
        self.carried = node.length


def take_outline(tree: Structure, limit: int, now: float) -> Outline:
    """The `limit` nodes that carry most tokens, among `READ_AT_MOST` that were read.

    Raises:
        ValueError: `limit` is negative.
    """
    if limit < 0:
        raise ValueError(f"limit {limit} is negative: give how many nodes to show")
    seen = list(_longest_first(tree))
    for each in reversed(seen):
        if each.parent is not None:
            each.parent.carried += each.carried
    # A node carries more than any below it, so the heaviest hang together; parents stay first.
    kept = set(nlargest(limit, seen, key=lambda each: each.carried))
    spaces: dict[Root, OutlineSpace] = {}
    places: dict[_Seen, int] = {}
    for each in seen:
        if each in kept:
            space = spaces.setdefault(each.top, OutlineSpace(each.top.namespace, []))
            parent = -1 if each.parent is None else places[each.parent]
            places[each] = len(space.nodes)
            space.nodes.append(_shown(each, parent, now))
    return Outline(tree.policy.name, tree.nodes, len(tree.roots), list(spaces.values()))


def tokens_of(tree: Structure, id: tuple[int, int], limit: int) -> array[int] | None:
    """The first `limit` tokens of a node that an outline showed; None if it is there no more."""
    for each in _longest_first(tree):
        if (each.node.age, each.node.end) == id:
            return array("i", each.node.data)[:limit]
    return None


def _longest_first(tree: Structure) -> Iterator[_Seen]:
    """At most `READ_AT_MOST` nodes, parents before their children."""
    numbers = count()
    left = READ_AT_MOST
    heap: list[tuple[int, int, _Seen]] = []

    def read(above: Node, parent: _Seen | None, top: Root) -> int:
        newest = islice(reversed(above.children.values()), min(left, CHILDREN_READ_AT_MOST))
        before = len(heap)
        for child in newest:
            seen = _Seen(child, parent, top)
            heappush(heap, (-seen.carried, next(numbers), seen))
        return len(heap) - before

    for root in islice(reversed(tree.roots.values()), READ_AT_MOST):
        left -= read(root, None, root)
    while heap:
        seen = heappop(heap)[2]
        left -= read(seen.node, seen, seen.top)
        yield seen


def _shown(seen: _Seen, parent: int, now: float) -> OutlineNode:
    node = seen.node
    return OutlineNode(
        (node.age, node.end),
        parent,
        node.start,
        node.end,
        seen.carried,
        len(node.children),
        0 if node.device is None else node.device.locks,
        node.device is not None,
        node.hits,
        max(now - node.last_access, 0.0),
        node.retained_until > now,
    )
