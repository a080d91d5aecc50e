"""A regular expression as a nondeterministic automaton over characters (Thompson, 1968).

It is built from its end: a node is told the state that comes behind it, and tells the one it begins
with. So nothing but choices, loops and assertions are states that read nothing.
"""

from __future__ import annotations

from phloem.grammar.dfa import Budget
from phloem.grammar.regex.charset import CharSet
from phloem.grammar.regex.tree import Alternatives, Assertion, Chars, Node, Place, Sequence

FINAL = 0
"""The only state that accepts."""


class Nfa:
    """States from `FINAL` on, and the one it starts in.

    Raises:
        ConstraintTooComplex: from the constructor, if the budget is spent.
    """

    def __init__(self, node: Node, budget: Budget) -> None:
        self._budget = budget
        self.reading: list[CharSet | None] = []
        """By state: what it reads, if anything."""
        self.places: list[Place | None] = []
        """By state: where alone one gets on from it, if it asserts a place."""
        self.targets: list[list[int]] = []
        """By state: where one gets; a single one, unless it neither reads nor asserts."""
        self.start = self._build(node, self._state(None, None, []))

    def _state(self, chars: CharSet | None, place: Place | None, targets: list[int]) -> int:
        state = len(self.targets)
        if not state & 1023:
            self._budget.check(state)
        self.reading.append(chars)
        self.places.append(place)
        self.targets.append(targets)
        return state

    def _build(self, node: Node, following: int) -> int:
        """Add what a node reads before `following`; where that begins."""
        if isinstance(node, Chars):
            return self._state(node.chars, None, [following])
        if isinstance(node, Sequence):
            for item in reversed(node.items):
                following = self._build(item, following)
            return following
        if isinstance(node, Alternatives):
            begins = [self._build(option, following) for option in node.options]
            return begins[0] if len(begins) == 1 else self._state(None, None, begins)
        if isinstance(node, Assertion):
            return self._state(None, node.place, [following])
        if node.most is not None:
            following = self._up_to(node.item, node.most - node.fewest, following)
            return self._times(node.item, node.fewest, following)
        loop = self._state(None, None, [following])
        begin = self._build(node.item, loop)
        self.targets[loop].append(begin)
        return self._times(node.item, node.fewest - 1, begin) if node.fewest else loop

    def _times(self, item: Node, times: int, following: int) -> int:
        for _ in range(times):
            begin = self._build(item, following)
            if begin == following:  # the empty text, however often
                break
            following = begin
        return following

    def _up_to(self, item: Node, times: int, end: int) -> int:
        following = end
        for _ in range(times):
            begin = self._build(item, following)
            if begin == following:
                break
            following = self._state(None, None, [begin, end])
        return following
