"""Who in a waiting queue shares a prefix with whom, before anything of it is computed.

Owns a small tree of keys and the items that brought them: no values, no locks, no eviction. It is
built anew for each look at the queue. What is cached already is `RadixCache`'s to say.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from .key import TOKEN_BYTES, Key, Namespace, common_prefix

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Shared(Generic[Item]):
    """`length` tokens (whole pages) are shared with `item`; None if there are none."""

    length: int
    item: Item | None


@dataclass(frozen=True, slots=True)
class Group(Generic[Item]):
    """Items, in the order they were added, whose keys share their first `length` tokens."""

    length: int
    items: tuple[Item, ...]

    @property
    def leader(self) -> Item:
        """The item that was added first."""
        return self.items[0]


class _Node(Generic[Item]):
    __slots__ = ("children", "data", "end", "first", "items")

    def __init__(self, data: bytes, end: int, first: Item | None) -> None:
        self.data = data
        self.end = end
        """Bytes from the root to the end of `data`."""
        self.first = first
        """The first item whose key goes on to the end of this node; None only at a root."""
        self.items: list[tuple[int, Item]] = []
        """Items whose whole pages end here, each with its serial number."""
        self.children: dict[bytes, _Node[Item]] = {}


class SimulatedTree(Generic[Item]):
    """Prefixes of the keys of a queue, added in queue order.

    In-batch prefix caching: of waiting requests that share a new prefix let the first one go, and
    let those wait whose `add` reports more shared tokens than are cached; next time they hit.

    "Shares at least n tokens with" is an equivalence: what a waits for, and what that one waits
    for, have as much in common with each other. So nobody waits for one who waits in vain, and
    `groups(n)` splits the queue into disjoint groups.

    Keys of different namespaces share nothing, and a partial page is never shared. One thread at a
    time. `add` compares O(length) bytes at `memcmp` speed.
    """

    def __init__(self, page_size: int = 1) -> None:
        if page_size < 1:
            raise ValueError(f"page_size {page_size} is less than 1: give the tokens of a page")
        self._page_bytes = page_size * TOKEN_BYTES
        self._roots: dict[Namespace, _Node[Item]] = {}
        self._added: list[Item] = []

    def add(self, key: Key, item: Item) -> Shared[Item]:
        """Add the next item of the queue.

        Returns the longest prefix, in whole pages, that its key shares with the key of an earlier
        item, and the first item that it is shared with.
        """
        page = self._page_bytes
        data = key.data[: len(key.data) - len(key.data) % page]
        node = self._roots.get(key.namespace)
        if node is None:
            node = self._roots[key.namespace] = _Node(b"", 0, None)
        while (child := node.children.get(data[node.end : node.end + page])) is not None:
            if not data.startswith(child.data, node.end):
                common = common_prefix(child.data, data, node.end, page)
                child = self._split(node, child, common)
            node = child
        shared = Shared(node.end // TOKEN_BYTES, node.first)
        if node.end < len(data):
            leaf = _Node(data[node.end :], len(data), item)
            node.children[leaf.data[:page]] = leaf
            node = leaf
        node.items.append((len(self._added), item))
        self._added.append(item)
        return shared

    def groups(self, min_length: int) -> list[Group[Item]]:
        """All groups of two or more items that share at least `min_length` tokens in whole pages.

        `length` is what all of a group share, which may be more. Groups are in the order of their
        leaders. O(nodes). Raises `ValueError` for less than 1 token, which all would share.
        """
        return [
            Group(top.end // TOKEN_BYTES, tuple(item for _, item in members))
            for top, members in self._groups(min_length)
        ]

    def leaders(self, min_length: int) -> list[Item]:
        """The items that need not wait for another: the first of each group, and all others alone.

        In the order they were added; `min_length` as in `groups`.
        """
        followers = {serial for _, members in self._groups(min_length) for serial, _ in members[1:]}
        return [item for serial, item in enumerate(self._added) if serial not in followers]

    def __len__(self) -> int:
        """How many items were added."""
        return len(self._added)

    def _split(self, parent: _Node[Item], lower: _Node[Item], at: int) -> _Node[Item]:
        """Give the first `at` bytes of `lower` to a new node between it and `parent`."""
        upper = _Node(lower.data[:at], parent.end + at, lower.first)
        lower.data = lower.data[at:]
        upper.children[lower.data[: self._page_bytes]] = lower
        parent.children[upper.data[: self._page_bytes]] = upper
        return upper

    def _groups(self, min_length: int) -> list[tuple[_Node[Item], list[tuple[int, Item]]]]:
        """Each group's top node and its members, in the order of the first members.

        The top is where all that the group shares ends: below every node the keys part, or one ends
        at it, because nodes are only made there.
        """
        if min_length < 1:
            raise ValueError(f"min_length {min_length} is less than 1: any two share 0 tokens")
        found = []
        stack = list(self._roots.values())
        while stack:
            node = stack.pop()
            if node.end < min_length * TOKEN_BYTES:
                stack.extend(node.children.values())
            elif len(members := _members(node)) > 1:
                found.append((node, members))
        return sorted(found, key=lambda group: group[1][0][0])


def _members(top: _Node[Item]) -> list[tuple[int, Item]]:
    """The items at and below a node with their serial numbers, in that order."""
    members: list[tuple[int, Item]] = []
    stack = [top]
    while stack:
        node = stack.pop()
        members.extend(node.items)
        stack.extend(node.children.values())
    return sorted(members, key=lambda member: member[0])
