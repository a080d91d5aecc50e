"""Free text up to a trigger: UTF-8 text, read by a state that knows which trigger may be under way.

The states are those of a trie of the triggers with failure links (Aho and Corasick, 1975), times
the places within a UTF-8 character.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt

from phloem.grammar.dfa import Dfa
from phloem.grammar.dfa.table import Table

State = int


class FreeText:
    """An automaton of texts in which no trigger occurs; no trigger contains another."""

    def __init__(self, triggers: Sequence[bytes]) -> None:
        trie = _Trie(triggers)
        utf8 = Dfa.any_text()
        pairs: dict[tuple[int, int], State] = {(0, 0): 0}
        rows: list[npt.NDArray[np.int32]] = []
        self.trigger_after: dict[tuple[State, int], int] = {}
        """By state and byte: the trigger that this byte completes."""
        waiting = deque(pairs)
        while waiting:
            node, place = waiting.popleft()
            row = np.full(256, -1, np.int32)
            for byte in np.flatnonzero(utf8.transitions[place] >= 0):
                following = trie.step(node, int(byte))
                if following in trie.ends:
                    self.trigger_after[len(rows), int(byte)] = trie.ends[following]
                else:
                    pair = (following, int(utf8.transitions[place, byte]))
                    if pair not in pairs:
                        pairs[pair] = len(pairs)
                        waiting.append(pair)
                    row[byte] = pairs[pair]
            rows.append(row)
        self.rows = [row.tolist() for row in rows]
        """By state and byte: the next state, or -1."""
        self.prefixes = [trie.spelled[node] for node, _ in pairs]
        """By state: the beginning of a trigger that the text ends with; the longest."""
        self.complete = [bool(utf8.accepting[place]) for _, place in pairs]
        """By state: whether no character is under way."""
        self._table = np.stack(rows)

    def rest_of_character(self, state: State) -> bytes | None:
        """The least of the fewest bytes to a whole character, without a trigger; None if none."""
        waiting, seen = deque([(state, b"")]), {state}
        while waiting:
            place, text = waiting.popleft()
            if self.complete[place]:
                return text
            for byte, following in enumerate(self.rows[place]):
                if following >= 0 and following not in seen:
                    seen.add(following)
                    waiting.append((following, text + bytes([byte])))
        return None

    @cached_property
    def dfa(self) -> Dfa | None:
        """The texts as a DFA whose states are those of `of_dfa`; None where it has fewer, since two
        states of this automaton differ only in which trigger they lead to."""
        classes = np.arange(256, dtype=np.uint8)
        dfa = Dfa(Table(self._table, np.array(self.complete), classes))
        return dfa if len(dfa.accepting) == len(self.rows) else None

    @cached_property
    def to_dfa(self) -> list[State]:
        """By state: the state of `dfa`."""
        assert self.dfa is not None, "asked only where there is a DFA"
        places = [-1] * len(self.rows)
        places[0] = 0
        waiting = deque([0])
        while waiting:
            state = waiting.popleft()
            for byte in np.flatnonzero(self._table[state] >= 0):
                following = self.rows[state][byte]
                if places[following] < 0:
                    places[following] = self.dfa.step(places[state], int(byte))
                    waiting.append(following)
        return places

    @cached_property
    def of_dfa(self) -> list[State]:
        """By state of `dfa`: the state here."""
        states = [0] * len(self.to_dfa)
        for state, place in enumerate(self.to_dfa):
            states[place] = state
        return states


class _Trie:
    def __init__(self, words: Sequence[bytes]) -> None:
        self.spelled: list[bytes] = [b""]
        self.ends: dict[int, int] = {}
        """By node: the word that ends there."""
        self._children: list[dict[int, int]] = [{}]
        for number, word in enumerate(words):
            node = 0
            for index, byte in enumerate(word):
                if byte not in self._children[node]:
                    self._children[node][byte] = len(self.spelled)
                    self.spelled.append(word[: index + 1])
                    self._children.append({})
                node = self._children[node][byte]
            self.ends[node] = number
        self._fail = [0] * len(self.spelled)
        waiting = deque(self._children[0].values())
        while waiting:
            node = waiting.popleft()
            for byte, child in self._children[node].items():
                self._fail[child] = self.step(self._fail[node], byte)
                waiting.append(child)

    def step(self, node: int, byte: int) -> int:
        """The longest suffix of the text that begins a word, after one more byte."""
        while node and byte not in self._children[node]:
            node = self._fail[node]
        return self._children[node].get(byte, 0)
