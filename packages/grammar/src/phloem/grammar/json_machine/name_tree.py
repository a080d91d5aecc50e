"""The declared names of an object as a prefix tree, and which of them are below a place in it."""

from __future__ import annotations

from collections.abc import Sequence


class NameTree:
    """A place in the tree. Those behind it are made when they are asked for: most never are."""

    __slots__ = ("_children", "_names", "_numbers", "below", "depth", "ends")

    def __init__(self, names: Sequence[bytes], numbers: Sequence[int], depth: int = 0) -> None:
        """`numbers` are of those names, all distinct, that begin with the same `depth` bytes."""
        self._names = names
        self._numbers = numbers
        self._children: dict[int, NameTree] | None = None
        self.depth = depth
        """The length of what leads here."""
        self.below = 0
        """Bit set of the names that begin with what leads here."""
        self.ends = -1
        """The name that is spelled here, or -1."""
        for number in numbers:
            self.below |= 1 << number
            if len(names[number]) == depth:
                self.ends = number

    @property
    def children(self) -> dict[int, NameTree]:
        """By byte: the place behind it."""
        if self._children is None:
            names, depth, numbers = self._names, self.depth, dict[int, list[int]]()
            for number in self._numbers:
                if number != self.ends:
                    numbers.setdefault(names[number][depth], []).append(number)
            self._children = {
                byte: NameTree(names, some, depth + 1) for byte, some in numbers.items()
            }
        return self._children

    def below_path(self, path: bytes) -> NameTree:
        """The place behind some bytes that lead to one."""
        place = self
        for byte in path:
            place = place.children[byte]
        return place

    @classmethod
    def of(cls, names: Sequence[bytes]) -> NameTree:
        """The root of a tree of distinct names."""
        return cls(names, range(len(names)))
