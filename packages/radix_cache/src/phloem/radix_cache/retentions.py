"""How much of a cache is retained: never more than a limit, of a namespace and of them all.

Owns the books of retained nodes and whose retention ends early. That the others are evicted last is
the affair of `leaves`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from sortedcontainers import SortedList  # type: ignore[import-untyped]

from .key import Namespace
from .node import Node, Root
from .observer import Observer


@dataclass(slots=True)
class _Mark:
    """One node that is retained."""

    node: Node
    namespace: Namespace
    order: tuple[int, int]
    """By the insert that retained it last; of one path the lowest node first."""
    until: float
    tokens: int


@dataclass(slots=True)
class _Books:
    """Marks, the oldest first, and their tokens."""

    marks: Any = field(default_factory=lambda: SortedList(key=lambda mark: mark.order))
    tokens: int = 0

    def add(self, mark: _Mark) -> None:
        self.marks.add(mark)
        self.tokens += mark.tokens

    def remove(self, mark: _Mark) -> None:
        self.marks.remove(mark)
        self.tokens -= mark.tokens


class Retentions(Observer):
    """Ends the oldest retentions where there are too many; O(log nodes) for each node."""

    def __init__(self, most: int, most_each: int, unretain: Callable[[Node], None]) -> None:
        """Retain at most `most` tokens, and `most_each` of one namespace.

        `unretain` is told of each node whose retention ends early.
        """
        self._most: Final = most
        self._most_each: Final = most_each
        self.longest: Final = min(most, most_each)
        """Tokens: what of a path is beyond them is not retained, since it could not stay."""
        self._unretain = unretain
        self._serial = 0
        self.cleared()

    @property
    def tokens(self) -> int:
        """What is retained, and what was until lately, and nobody has looked since."""
        return self._all.tokens

    def mark(self, node: Node, root: Root, now: float) -> None:
        """A path, down to `node`, was retained until what its nodes say."""
        self._expire(now)
        self._serial += 1
        while node.parent is not None:
            if node.end <= self.longest:
                self._forget(node)
                self._note(node, root.namespace, (self._serial, -node.end))
            node = node.parent
        books = self._each.get(root.namespace)
        while books is not None and books.tokens > self._most_each:
            self._end(books.marks[0])
        while self._all.tokens > self._most:
            self._end(self._all.marks[0])

    def split(self, upper: Node, lower: Node) -> None:
        """Both parts are retained as the whole was."""
        mark = self._forget(lower)
        if mark is not None:
            serial, end = mark.order
            self._note(lower, mark.namespace, mark.order)
            self._note(upper, mark.namespace, (serial, end + lower.length))

    def trimmed(self, node: Node, tail: bytes) -> None:
        """What is cut off is retained no longer."""
        mark = self._forget(node)
        if mark is not None:
            self._note(node, mark.namespace, mark.order)

    def unlinking(self, node: Node, evicted: bool) -> None:
        """Nor is what goes."""
        self._forget(node)

    def cleared(self) -> None:
        """Nothing is left."""
        self._marks: dict[Node, _Mark] = {}
        self._all = _Books()
        self._each: dict[Namespace, _Books] = {}
        self._expiries = SortedList(key=lambda mark: (mark.until, mark.order))

    def _note(self, node: Node, namespace: Namespace, order: tuple[int, int]) -> None:
        mark = _Mark(node, namespace, order, node.retained_until, node.length)
        self._marks[node] = mark
        self._all.add(mark)
        self._each.setdefault(namespace, _Books()).add(mark)
        self._expiries.add(mark)

    def _forget(self, node: Node) -> _Mark | None:
        mark = self._marks.pop(node, None)
        if mark is not None:
            self._all.remove(mark)
            self._expiries.remove(mark)
            books = self._each[mark.namespace]
            books.remove(mark)
            if not books.marks:
                del self._each[mark.namespace]
        return mark

    def _end(self, mark: _Mark) -> None:
        self._forget(mark.node)
        self._unretain(mark.node)

    def _expire(self, now: float) -> None:
        while self._expiries and self._expiries[0].until <= now:
            self._end(self._expiries[0])
