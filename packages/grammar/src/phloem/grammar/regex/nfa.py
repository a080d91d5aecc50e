"""A regular expression as a nondeterministic automaton over characters (Thompson, 1968)."""

from __future__ import annotations

from phloem.grammar.dfa import Budget
from phloem.grammar.regex.charset import CharSet
from phloem.grammar.regex.tree import Alternatives, Assertion, Chars, Node, Place, Repeat, Sequence


class Nfa:
    """States from 0, the start, to `final`, which alone accepts.

    Raises:
        ConstraintTooComplex: from the constructor, if the budget is spent.
    """

    def __init__(self, node: Node, budget: Budget) -> None:
        self._budget = budget
        self.empty: list[list[int]] = []
        """By state: where one gets without reading."""
        self.asserted: list[list[tuple[Place, int]]] = []
        """By state: where one gets without reading, at a certain place only."""
        self.reading: list[tuple[CharSet, int] | None] = []
        """By state: where one gets with a character of a set."""
        self.final = self._build(node, self._state())

    def _state(self) -> int:
        state = len(self.empty)
        if not state & 1023:
            self._budget.check(state)
        self.empty.append([])
        self.asserted.append([])
        self.reading.append(None)
        return state

    def _build(self, node: Node, start: int) -> int:
        """Add the automaton of a node behind a state, which nothing else leaves; its end."""
        if isinstance(node, Chars):
            end = self._state()
            self.reading[start] = (node.chars, end)
            return end
        if isinstance(node, Assertion):
            end = self._state()
            self.asserted[start].append((node.place, end))
            return end
        if isinstance(node, Sequence):
            for item in node.items:
                start = self._build(item, start)
            return start
        if isinstance(node, Alternatives):
            ends = [self._build(option, self._branch(start)) for option in node.options]
            end = self._state()
            for option_end in ends:
                self.empty[option_end].append(end)
            return end
        return self._repeat(node, start)

    def _branch(self, start: int) -> int:
        state = self._state()
        self.empty[start].append(state)
        return state

    def _repeat(self, node: Repeat, start: int) -> int:
        for _ in range(node.fewest):
            start = self._build(node.item, start)
        if node.most is None:
            loop = self._branch(start)
            self.empty[self._build(node.item, self._branch(loop))].append(loop)
            return self._branch(loop)
        leaves = [start]
        for _ in range(node.most - node.fewest):
            start = self._build(node.item, self._branch(start))
            leaves.append(start)
        end = self._state()
        for state in leaves:
            self.empty[state].append(end)
        return end
