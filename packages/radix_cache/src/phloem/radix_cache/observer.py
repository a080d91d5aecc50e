"""What the tree tells those who keep a record of it: the event log and the list of ghosts."""

from __future__ import annotations

from typing import ClassVar

from .key import Namespace
from .node import Node, Root
from .tier import Tier


class Observer:
    """Told of every change, right after it, in the writing thread; does nothing by itself."""

    hears_of_copies: ClassVar[bool] = False
    """Whether to call `gained` and `losing`, which cost each eviction a call."""

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

    def unlinking(self, node: Node, evicted: bool) -> None:
        """`node`, a leaf of the tree that has no copy any more, is about to be taken out.

        It was evicted, or else dropped.
        """

    def linked(self, node: Node) -> None:
        """`node` is a new leaf of the tree, its first copy not made yet."""

    def dropping(self, namespace: Namespace, root: Root | None) -> None:
        """A namespace is about to be emptied; `root` is its own, None if it holds nothing."""

    def cleared(self) -> None:
        """All is gone. Nothing was told of the single nodes."""
