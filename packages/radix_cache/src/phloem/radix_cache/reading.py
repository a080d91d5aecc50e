"""Look-ups that change nothing; `peek` and `sizes` may run beside the writing thread."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Any

from .handles import Sizes, TierSizes
from .key import TOKEN_BYTES, Key, common_prefix
from .ledger import Ledger
from .node import Node, Root, path_to
from .structure import Structure
from .tier import Tier


def peek(top: Node | None, key: Key, page_size: int, tier: Tier) -> int:
    """How many tokens of `key` lie cached under the root `top`, in whole pages.

    With Tier.HOST, those that only the host holds count too. Every token counted was cached at some
    moment of the call.
    """
    while True:
        found = peek_once(top, key, page_size, tier)
        if found is not None:
            return found


def peek_once(top: Node | None, key: Key, page_size: int, tier: Tier) -> int | None:
    """One attempt at `peek`; None if the writer changed a node under it."""
    data, page = key.data, page_size * TOKEN_BYTES
    at = 0
    node = top
    while node is not None and (child := node.children.get(data[at : at + page])) is not None:
        # The copy first: if it is let go after this, the edge is cut before it or not at all.
        held, edge = child.device, child.data
        # A split shortens `data` from the front and keeps `end`; a trim shortens both from the
        # back, one after the other. So the start comes out right only if neither happened.
        if child.end * TOKEN_BYTES - len(edge) != at:
            return None
        if held is None and tier == Tier.DEVICE:
            break
        if not data.startswith(edge, at):
            return (at + common_prefix(edge, data, at, page)) // TOKEN_BYTES
        at += len(edge)
        node = child
    return at // TOKEN_BYTES


def resident(top: Node | None, key: Key, page_size: int, ledger: Ledger) -> Any:
    """The values of the longest prefix of `key` that a tier holds under the root `top`, joined."""
    data, page = key.data, page_size * TOKEN_BYTES
    at = 0
    found: list[Any] = []
    node = top
    while node is not None and (child := node.children.get(data[at : at + page])) is not None:
        copy, edge = ledger.of(child), child.data
        if copy is None:
            break
        length = common_prefix(edge, data, at, page)
        found.append(ledger.adapter.cut(copy.values, 0, length // TOKEN_BYTES))
        at += length
        if length < len(edge):
            break
        node = child
    return ledger.adapter.join(found)


def key_to(node: Node) -> Key:
    """The tokens from the root down to the end of a node, and its namespace."""
    path = path_to(node)
    root = path[0].parent
    assert isinstance(root, Root), f"{node} has left the tree"
    return Key(array("i", b"".join(each.data for each in path)), root.namespace)


def holder(tree: Structure, value: Any, tier: Tier) -> str:
    """The node whose copy in a tier has a value, in words."""
    ledger = tree.ledger(tier)
    stack: list[Node] = list(tree.roots.values())
    while stack:
        node = stack.pop()
        copy = None if isinstance(node, Root) else ledger.of(node)
        if copy is not None and value in copy.values:
            return f"node [{node.start}, {node.end}) of {key_to(node)!r}"
        stack.extend(node.children.values())
    return "no node"


def sizes(tree: Structure) -> Sizes:
    """Tokens evictable, protected and in total, by tier."""
    evictable, protected = tree.device.counts
    below, pinned = (0, 0) if tree.host is None else tree.host.counts
    return Sizes(
        evictable,
        protected,
        evictable + protected,
        host=TierSizes(below, pinned, below + pinned),
    )


def iter_values(tree: Structure, tier: Tier) -> Iterator[Any]:
    """Every value segment of a tier, parents first."""
    ledger = tree.ledger(tier)
    stack: list[Node] = list(tree.roots.values())
    while stack:
        for child in stack.pop().children.values():
            copy = ledger.of(child)
            if copy is not None:
                yield copy.values
            stack.append(child)
