"""The evictable leaves, sorted by policy rank and kept so incrementally.

Owns the order of eviction; the tree tells it which nodes are unlocked leaves.
"""

from __future__ import annotations

from sortedcontainers import SortedList  # type: ignore[import-untyped]

from .node import Node
from .policy import EvictionPolicy, Rank

IndexEntry = tuple[Rank, int, Node]


class LeafIndex:
    """A sorted list of `(rank, age, node)`; every operation is O(log leaves).

    Two leaves never have the same age: nodes that share one were split from one node, so they lie
    on one path, and only the lowest of a path is a leaf. Hence the order is total and nodes
    themselves are never compared.
    """

    def __init__(self, policy: EvictionPolicy) -> None:
        self._policy = policy
        self._entries = SortedList()

    def add(self, node: Node) -> None:
        """Put an unlocked leaf in."""
        node.entry = (self._policy.rank(node), node.age, node)
        self._entries.add(node.entry)

    def discard(self, node: Node) -> None:
        """Take a node out, if it is in."""
        if node.entry is not None:
            self._entries.remove(node.entry)
            node.entry = None

    def refresh(self, node: Node) -> None:
        """Sort a node in anew after its fields changed, if it is in."""
        if node.entry is not None:
            self._entries.remove(node.entry)
            self.add(node)

    def first(self) -> Node | None:
        """The leaf that goes first."""
        if not self._entries:
            return None
        entry: IndexEntry = self._entries[0]
        return entry[2]

    def nodes(self) -> list[Node]:
        """The leaves in the order of eviction."""
        return [node for _, _, node in self._entries]

    def __len__(self) -> int:
        return len(self._entries)
