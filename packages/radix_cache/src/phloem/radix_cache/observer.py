"""What the tree tells those who keep a record of it: the event log and the list of ghosts."""

from __future__ import annotations

from .node import Node
from .tier import Tier


class Observer:
    """Told of every change, right after it, in the writing thread; does nothing by itself."""

    def gained(self, node: Node, tier: Tier) -> None:
        """`node` has a copy in `tier` now. Its parents are linked; it may not be found yet."""

    def losing(self, node: Node, tier: Tier) -> None:
        """`node` is about to lose its copy in `tier`; it is still linked."""

    def split(self, upper: Node, lower: Node) -> None:
        """`upper` was made from the front of `lower`, the old object."""

    def trimmed(self, node: Node, tail: bytes) -> None:
        """`tail`, whole pages as int32 bytes, was cut off the end of a leaf of the tree.

        The leaf had one copy only. `node.end` and `node.data` are those of now.
        """

    def unlinking(self, node: Node) -> None:
        """`node`, a leaf of the tree that has no copy any more, is about to be taken out."""

    def linked(self, node: Node) -> None:
        """`node` is a new leaf of the tree, its first copy not made yet."""

    def matched(self, node: Node) -> None:
        """A match found all tokens down to `node` on the device; `node` may be a root."""

    def cleared(self) -> None:
        """All is gone. Nothing was told of the single nodes."""
