"""A `Dfa` as an automaton: regular expressions, choices, and any other regular constraint."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from phloem.grammar.automaton import Region, TokenCost
from phloem.grammar.dfa import Dfa


class DfaAutomaton:
    """The texts of a DFA; all of it is one region."""

    def __init__(self, dfa: Dfa) -> None:
        """`dfa` may not be empty: there would be no start."""
        self.dfa = dfa
        self._cursors: list[DfaCursor | None] = [None] * dfa.states
        self._cost: TokenCost | None = None
        self._distances: dict[int, int] = {}

    @property
    def start(self) -> DfaCursor:
        """The position at the beginning of a text."""
        return self.cursor(0)

    def cursor(self, state: int) -> DfaCursor:
        """The one cursor of a state."""
        cursor = self._cursors[state]
        if cursor is None:
            cursor = self._cursors[state] = DfaCursor(self, state)
        return cursor

    def distance(self, state: int, cost: TokenCost) -> int:
        """The tokens of a shortest completion in bytes; kept for all states on the way."""
        if self._cost is not cost:
            self._cost, self._distances = cost, {}
        known = self._distances
        rest = self.dfa.shortest(state) if state not in known else b""
        at = state
        for start in range(len(rest) + 1):
            if at in known:
                break
            known[at] = cost(rest[start:])
            at = self.dfa.step(at, rest[start]) if start < len(rest) else at
        return known[state]

    def farthest(self, cost: TokenCost, missing: bytes) -> int | None:
        """The bytes of the longest of all shortest completions, if each may take a token."""
        is_spelled = self.dfa.way_bytes.isdisjoint(missing)
        return int(self.dfa.byte_distances.max()) if is_spelled else None

    def serialize(self) -> bytes:
        """The compiled form of the DFA."""
        return self.dfa.serialize()

    @classmethod
    def deserialize(cls, data: bytes) -> DfaAutomaton:
        """What `serialize` gave.

        Raises:
            GrammarError: if the bytes are damaged.
        """
        return cls(Dfa.deserialize(data))


class DfaCursor:
    """A state of a DFA; one object per state, so identity is equality."""

    __slots__ = ("_automaton", "_state", "complete")

    def __init__(self, automaton: DfaAutomaton, state: int) -> None:
        self._automaton = automaton
        self._state = state
        self.complete = automaton.dfa.may_end(state)

    def step(self, byte: int) -> DfaCursor | None:
        """The cursor after one more byte."""
        state = self._automaton.dfa.step(self._state, byte)
        return None if state < 0 else self._automaton.cursor(state)

    def first_bytes(self) -> bytes:
        """The bytes that may come next."""
        return self._automaton.dfa.first_bytes(self._state)

    @property
    def has_choice(self) -> bool:
        """Whether several bytes may come next, or nothing has to."""
        return self.complete or len(self.first_bytes()) > 1

    def moves(self, among: Collection[int]) -> Iterator[tuple[int, DfaCursor]]:
        """Those of some bytes that may, each with the cursor after it."""
        automaton, state = self._automaton, self._state
        for byte in self.first_bytes():
            if byte in among:
                yield byte, automaton.cursor(automaton.dfa.step(state, byte))

    def run(self) -> None:
        """None: a region tells it as well."""
        return None

    def region(self) -> Region | None:
        """The DFA, unless so few bytes may come that a walk is faster than a sweep."""
        if len(self.first_bytes()) <= _NARROW:
            return None
        return Region(self._automaton.dfa, self._state, self._automaton.cursor, closed=True)

    def part(self) -> None:
        """None: what comes is its own matter all along."""
        return None

    def distance(self, cost: TokenCost) -> int:
        """Of a completion of fewest bytes, which is consistent: each state has one of its own."""
        return self._automaton.distance(self._state, cost)


_NARROW = 2
