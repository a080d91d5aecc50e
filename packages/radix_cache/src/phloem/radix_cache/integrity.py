"""The self-check: recounts what the tree keeps incrementally and checks the shape of every node."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NoReturn

from .errors import IntegrityError
from .key import TOKEN_BYTES, Namespace
from .node import Node, Root
from .policy import EvictionPolicy
from .values import ValueAdapter


def check(
    *,
    roots: Mapping[Namespace, Root],
    page_size: int,
    counts: tuple[int, int],
    nodes: int,
    leaves: Sequence[Node],
    policy: EvictionPolicy,
    adapter: ValueAdapter,
) -> None:
    """Raises `IntegrityError` at the first thing that is wrong. O(nodes + leaves log leaves)."""
    evictable = protected = seen = 0
    expected: list[Node] = []
    for parent, page, node in _edges(roots):
        _check_node(parent, page, node, page_size, adapter)
        seen += 1
        if node.locks:
            protected += node.length
        else:
            evictable += node.length
            if not node.children:
                expected.append(node)
    if (evictable, protected) != counts:
        _fail(f"evictable, protected are {counts}, recounted {(evictable, protected)}")
    if seen != nodes:
        _fail(f"{nodes} nodes are counted, {seen} are in the tree")
    expected.sort(key=lambda node: (policy.rank(node), node.age))
    if expected != list(leaves):
        _fail(f"the index holds {list(leaves)} in this order, it should hold {expected}")


def _edges(roots: Mapping[Namespace, Root]) -> Iterator[tuple[Node, bytes, Node]]:
    for namespace, root in roots.items():
        if root.namespace != namespace:
            _fail(f"the root of {root.namespace!r} stands under {namespace!r}")
        if not root.children:
            _fail(f"namespace {namespace!r} is empty but kept")
        stack: list[Node] = [root]
        while stack:
            node = stack.pop()
            for page, child in node.children.items():
                yield node, page, child
                stack.append(child)


def _check_node(
    parent: Node, page: bytes, node: Node, page_size: int, adapter: ValueAdapter
) -> None:
    if node.parent is not parent:
        _fail(f"{node} is a child of {parent} but names {node.parent} as its parent")
    if not node.data or node.length % page_size:
        _fail(f"{node} has {node.length} tokens, not a positive multiple of page_size {page_size}")
    if node.data[: page_size * TOKEN_BYTES] != page:
        _fail(f"{node} stands under a page that is not its first")
    if node.end - node.length != parent.end:
        _fail(f"{node} does not start where its parent {parent} ends")
    if adapter.length(node.values) != node.length:
        _fail(f"{node} has {node.length} tokens and not as many values")
    if node.locks < 0 or (parent.parent is not None and node.locks > parent.locks):
        _fail(f"{node} has {node.locks} locks under a parent with {parent.locks}")
    if not node.locks and not node.children and node.entry is None:
        _fail(f"{node} is an unlocked leaf outside the index")


def _fail(message: str) -> NoReturn:
    raise IntegrityError(f"radix cache: {message}")
