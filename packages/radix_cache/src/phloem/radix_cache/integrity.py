"""The self-check: recounts what the tree keeps incrementally and checks the shape of every node."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NoReturn

from .errors import IntegrityError
from .key import TOKEN_BYTES, Namespace
from .ledger import Ledger
from .node import Copy, Node, Root
from .structure import Structure


def check(structure: Structure, now: float) -> None:
    """Raises `IntegrityError` at the first thing that is wrong. O(nodes + leaves log leaves)."""
    nodes: list[Node] = []
    for parent, page, node in _edges(structure.roots):
        _check_node(parent, page, node, structure.page_size)
        nodes.append(node)
    if len(nodes) != structure.nodes:
        _fail(f"{structure.nodes} nodes are counted, {len(nodes)} are in the tree")
    for ledger in structure.ledgers:
        _check_tier(structure, ledger, nodes, now)


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


def _check_node(parent: Node, page: bytes, node: Node, page_size: int) -> None:
    if node.parent is not parent:
        _fail(f"{node} is a child of {parent} but names {node.parent} as its parent")
    if not node.data or node.length % page_size:
        _fail(f"{node} has {node.length} tokens, not a positive multiple of page_size {page_size}")
    if node.data[: page_size * TOKEN_BYTES] != page:
        _fail(f"{node} stands under a page that is not its first")
    if node.start != parent.end:
        _fail(f"{node} does not start where its parent {parent} ends")
    if node.device is None and node.host is None:
        _fail(f"{node} has no copy in any tier but is kept")


def _check_tier(structure: Structure, ledger: Ledger, nodes: list[Node], now: float) -> None:
    tier = ledger.tier.name.lower()
    ledger.leaves.expire(now)
    evictable = protected = 0
    leaves: list[Copy] = []
    children: dict[Copy, int] = {}
    for node in nodes:
        copy = ledger.of(node)
        if copy is None:
            continue
        _check_copy(ledger, node, copy)
        assert copy.parent is not None, "checked above"
        children[copy.parent] = children.get(copy.parent, 0) + 1
        if copy.locks:
            protected += node.length
        else:
            evictable += node.length
        if not copy.locks and not copy.children:
            leaves.append(copy)
        elif copy.entry is not None:
            _fail(f"{copy} stands in the index of evictable leaves and is none")
    for copy in filter(None, map(ledger.of, [*nodes, *structure.roots.values()])):
        if copy.children != children.get(copy, 0):
            _fail(f"{copy} has {children.get(copy, 0)} copies below it in the {tier} tier")
    if (evictable, protected) != ledger.counts:
        _fail(
            f"the {tier} tier's evictable, protected are {ledger.counts}, recounted "
            f"{(evictable, protected)}"
        )
    rank = structure.policy.rank
    leaves.sort(key=lambda c: (c.node.retained_until > 0, rank(c.node), c.node.age))
    if leaves != ledger.leaves.copies():
        _fail(f"the index holds {ledger.leaves.copies()} in this order, it should hold {leaves}")


def _check_copy(ledger: Ledger, node: Node, copy: Copy) -> None:
    above = None if node.parent is None else ledger.of(node.parent)
    if copy.node is not node:
        _fail(f"{copy} is a copy of {node} but names another node")
    if above is None or copy.parent is not above:
        _fail(f"{copy} hangs from {copy.parent}, the copy above it is {above}")
    if ledger.adapter.length(copy.values) != node.length:
        _fail(f"{copy} has {node.length} tokens and not as many values")
    if copy.locks < 0 or (above.parent is not None and copy.locks > above.locks):
        _fail(f"{copy} has more locks than {above} above it")


def _fail(message: str) -> NoReturn:
    raise IntegrityError(f"radix cache: {message}")
