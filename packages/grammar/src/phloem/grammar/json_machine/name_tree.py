"""The declared names of an object as a prefix tree, and which of them are below a place in it."""

from __future__ import annotations

from collections.abc import Iterable


class NameTree:
    """A place in the tree."""

    __slots__ = ("below", "children", "depth", "ends")

    def __init__(self, depth: int = 0) -> None:
        self.depth = depth
        """The length of what leads here."""
        self.children: dict[int, NameTree] = {}
        self.below = 0
        """Bit set of the names that begin with what leads here."""
        self.ends = -1
        """The name that is spelled here, or -1."""

    def below_path(self, path: bytes) -> NameTree:
        """The place behind some bytes that lead to one."""
        place = self
        for byte in path:
            place = place.children[byte]
        return place

    @classmethod
    def of(cls, names: Iterable[bytes]) -> NameTree:
        """The root of a tree of distinct names."""
        root = cls()
        for number, name in enumerate(names):
            place = root
            place.below |= 1 << number
            for byte in name:
                following = place.children.get(byte)
                if following is None:
                    following = place.children[byte] = cls(place.depth + 1)
                following.below |= 1 << number
                place = following
            place.ends = number
        return root
