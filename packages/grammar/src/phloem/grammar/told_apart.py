"""Texts along which a cursor is more exact than its region, and what tokens come to along them.

Within an object, say, the names that were used before: all others are alike, and a region tells
what tokens do with them; along these, what comes behind their bytes is asked of the cursor itself.
"""

from __future__ import annotations

from collections.abc import Sequence

from phloem.grammar.automaton import Cursor, Region
from phloem.grammar.branches import Branch

Following = list[tuple[Branch, Cursor]]
"""Branches below which there is more, with where they lead."""


class ToldApart:
    """What is found along `Region.apart` below a branch. Such tokens are few."""

    def __init__(self, branch: Branch, cursor: Cursor, region: Region, small: int | None) -> None:
        """`small`: where tokens lead is told too, and of so small branches all by steps."""
        self.following: Following = []
        self.ends: list[tuple[Cursor, Sequence[int]]] = []
        """What tokens lead to that end on a text."""
        self.nodes: set[int] = set()
        """Where the region is left, or has nothing to tell, in another way than it would say."""
        self.tokens: list[int] = []
        """Those of which the region has nothing to tell: they end on a text, or are not legal."""
        self._branch, self._cursor, self._region = branch, cursor, region
        self._small = small
        self._seen: dict[Branch, bool] = {branch: True}
        """Branches that texts lead to: whether there is more to see along them."""
        for text in region.dead:
            self._leave_out(text)
        self._leave(branch, region.state, b"")
        for text in region.apart:
            self._follow(text)

    def _follow(self, text: bytes) -> None:
        branch, state = self._branch, self._region.state
        step, seen = self._region.dfa.step, self._seen
        for count, byte in enumerate(text, 1):
            child = branch.below.get(byte)
            if child is None:
                return
            state = step(state, byte)
            goes_on = seen.get(child)
            if goes_on is None:
                goes_on = seen[child] = self._enter(child, state, text[:count])
            if not goes_on:
                return
            branch = child

    def _enter(self, child: Branch, state: int, text: bytes) -> bool:
        if state < 0 or self._small is not None:
            cursor = self._after(text)
            if cursor is None or state < 0 or child.size <= (self._small or 0):
                self._without(child)
                if cursor is not None:
                    self.following.append((child, cursor))
                return False
            self.ends.append((cursor, child.tokens))
            self.tokens += child.tokens
        leaving = self._region.leaving
        if leaving is None or not child.below.keys().isdisjoint(leaving):
            self._leave(child, state, text)
        return True

    def _leave(self, branch: Branch, state: int, text: bytes) -> None:
        """Leave the region behind a text."""
        leaving = self._region.leaving
        for byte in branch.below if leaving is None else leaving:
            child = branch.below.get(byte)
            if child is None or self._region.dfa.step(state, byte) >= 0:
                continue
            self.nodes.update(child.nodes)
            cursor = self._after(text)
            target = None if cursor is None else cursor.step(byte)
            if target is not None:
                self.following.append((child, target))

    def _leave_out(self, text: bytes) -> None:
        child: Branch | None = self._branch
        for byte in text:
            child = None if child is None else child.below.get(byte)
        if child is not None:
            self._seen[child] = False
            self._without(child)

    def _without(self, branch: Branch) -> None:
        nodes, tokens = branch.all_below()
        self.nodes.update(nodes)
        self.tokens += tokens

    def _after(self, text: bytes) -> Cursor | None:
        cursor: Cursor | None = self._cursor
        for byte in text:
            cursor = None if cursor is None else cursor.step(byte)
        return cursor
