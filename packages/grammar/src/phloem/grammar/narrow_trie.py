"""The part of a vocabulary's prefix tree that some bytes alone lead to, and sweeps of that part.

A pattern of digits, say, or the blanks of an indentation meet a small share of all tokens, always
the same one: it is cut out once, for all automata over these bytes, or over some of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from phloem.grammar.dfa import Dfa
from phloem.grammar.dfa.table import Bools, Bytes, Ints, Longs, spans

if TYPE_CHECKING:
    from phloem.grammar.token_trie import TokenTrie


@dataclass(frozen=True, slots=True)
class Sweep:
    """What becomes of the tokens below some nodes."""

    tokens: Ints
    """The tokens that stay inside the DFA, [n]."""
    ends: Ints | Longs
    """The state each of them leads to, [n]."""
    end_states: list[int]
    """Each state that one leads to, once."""
    exits: Longs
    """The nodes whose byte the DFA does not know, in a state that it was in before, [m]."""
    exit_states: Ints | Longs
    """That state, [m]."""
    exit_bytes: Bytes
    """That byte, [m]."""

    @classmethod
    def of(
        cls,
        tokens: Ints,
        ends: Ints | Longs,
        exits: Longs,
        exit_states: Ints | Longs,
        exit_bytes: Bytes,
    ) -> Sweep:
        """From all but one of them."""
        return cls(tokens, ends, _each_once(ends), exits, exit_states, exit_bytes)

    def without(self, tokens: list[int] | tuple[int, ...]) -> Sweep:
        """The same for all but some tokens; exits stay."""
        if not tokens:
            return self
        left_out = np.zeros(max(int(self.tokens.max(initial=0)), *tokens) + 1, bool)
        left_out[[*tokens]] = True
        kept = ~left_out[self.tokens]
        ends = self.ends[kept]
        return replace(self, tokens=self.tokens[kept], ends=ends, end_states=_each_once(ends))

    def moved(self, by: int, last: int) -> Sweep:
        """That from a state which is so much further in a DFA that counts; see `Moved`."""
        kept, out = self.ends <= last - by, self.exit_states <= last - by
        return Sweep.of(
            self.tokens[kept],
            self.ends[kept] + by,
            self.exits[out],
            self.exit_states[out] + by,
            self.exit_bytes[out],
        )

    def leaving_by(self, some: bytes) -> Sweep:
        """The same with those exits alone that are by one of some bytes."""
        kept = among(some)[self.exit_bytes]
        return replace(
            self,
            exits=self.exits[kept],
            exit_states=self.exit_states[kept],
            exit_bytes=self.exit_bytes[kept],
        )


def among(some: Iterable[int]) -> Bools:
    """[256]: whether each byte is one of some."""
    table = np.zeros(256, bool)
    table[[*some]] = True
    return table


class _Border(NamedTuple):
    """Nodes that are not within, but whose parents are."""

    nodes: Longs
    parents: Ints
    labels: Bytes


class _Prepared(NamedTuple):
    """What all sweeps through one DFA have in common."""

    flat: Ints
    """The transitions. A state is told by `width` times one more than its number; 0 is dead."""
    width: int
    columns: Ints
    """The class of the byte of each node within."""


class NarrowTrie:
    """The nodes that bytes of one alphabet lead to, numbered level by level; the root is 0."""

    def __init__(self, trie: TokenTrie, alphabet: bytes) -> None:
        self._inside = among(alphabet)
        levels, level = [0, 1], np.zeros(1, np.int64)
        found = [level]
        while len(level):
            children = spans(trie.first_children[level], trie.child_counts[level])
            level = children[self._inside[trie.labels[children]]]
            found.append(level)
            levels.append(levels[-1] + len(level))
        self._levels = levels[:-1]
        self._nodes = np.concatenate(found)
        self._labels = trie.labels[self._nodes]
        numbers = np.zeros(len(trie.labels), np.int32)
        numbers[self._nodes] = np.arange(len(self._nodes))
        self._parents = numbers[trie.parents[self._nodes]]
        children = spans(trie.first_children[self._nodes], trie.child_counts[self._nodes])
        left = children[~self._inside[trie.labels[children]]]
        self._border = _Border(left, numbers[trie.parents[left]], trie.labels[left])
        self._borders: dict[bytes, _Border] = {}
        counts = trie.token_counts[self._nodes]
        self._tokens = trie.tokens[spans(trie.first_tokens[self._nodes], counts)]
        self._nodes_of_tokens = np.repeat(np.arange(len(counts)), counts)
        self._wide = self._count_wide()
        first, above = self._levels[self._wide], self._levels[self._wide - 1]
        self._last_parents: list[int] = (self._parents[first:] - above).tolist()
        self._last_labels = self._labels[first:].tobytes()
        self._below = self._sizes_below()
        self._prepared: dict[Dfa, _Prepared] = {}

    def _count_wide(self) -> int:
        """How many levels are not worth looking at node by node: none behind them is."""
        if len(self) <= _FEW:
            return 1
        return int(np.flatnonzero(np.diff(self._levels) > _NARROW).max(initial=0)) + 1

    def _sizes_below(self) -> list[tuple[int, int]]:
        """The bytes that tokens begin with, and how many nodes there are below each."""
        firsts = self._labels.copy()
        for begin, end in pairwise(self._levels[2:]):
            firsts[begin:end] = firsts[self._parents[begin:end]]
        return list(enumerate(np.bincount(firsts[1:]).tolist()))

    def __len__(self) -> int:
        return len(self._nodes)

    def alive(self, dfa: Dfa, state: int) -> int:
        """How many nodes are below those that a first byte leads to."""
        row, classes = dfa.row(state), dfa.class_bytes
        return sum(size for byte, size in self._below if size and row[classes[byte]] >= 0)

    def sweep(self, dfa: Dfa, state: int, leaving: bytes | None) -> Sweep:
        """Run every token through a DFA that knows no other bytes than those of the alphabet.

        Args:
            dfa: the DFA.
            state: where it is at the root.
            leaving: exits by other bytes are not told; None: all are.
        """
        states, width = self._states(dfa, state)
        ends = states[self._nodes_of_tokens]
        tokens = np.flatnonzero(ends)
        border = self._border_by(leaving)
        sources = states[border.parents]
        out = np.flatnonzero(sources)
        exits, sources, labels = border.nodes[out], sources[out], border.labels[out]
        if leaving is None or self._inside[[*leaving]].any():
            before = states[self._parents]
            left = (states == 0) & (before != 0)
            if leaving is not None:
                left &= among(leaving)[self._labels]
            more = np.flatnonzero(left)
            exits = np.concatenate((self._nodes[more], exits))
            sources = np.concatenate((before[more], sources))
            labels = np.concatenate((self._labels[more], labels))
        return Sweep.of(
            self._tokens[tokens], ends[tokens] // width - 1, exits, sources // width - 1, labels
        )

    def _states(self, dfa: Dfa, state: int) -> tuple[Ints, int]:
        """By node: the state there, told as in `_Prepared`; and the width."""
        if self._wide == 1:
            return np.array([state + 1, *self._last_states(dfa, [state])], np.int32), 1
        flat, width, columns = self._prepare(dfa)
        parents, wide = self._parents, self._levels[: self._wide + 1]
        states = np.zeros(len(parents), np.int32)
        states[0] = (state + 1) * width
        for begin, end in pairwise(wide[1:]):
            before = states.take(parents[begin:end])
            before += columns[begin:end]
            flat.take(before, out=states[begin:end], mode="clip")
        above = states[wide[-2] : wide[-1]]
        if above.any():
            last = self._last_states(dfa, (above // width - 1).tolist())
            states[wide[-1] :] = np.array(last, np.int32) * width
        return states, width

    def _last_states(self, dfa: Dfa, above: list[int]) -> list[int]:
        """One more than the states in the levels that are not wide; `above` is the one before."""
        classes, row, states = dfa.class_bytes, dfa.row, above.copy()
        for parent, label in zip(self._last_parents, self._last_labels, strict=True):
            source = states[parent]
            states.append(row(source)[classes[label]] if source >= 0 else -1)
        return [state + 1 for state in states[len(above) :]]

    def _prepare(self, dfa: Dfa) -> _Prepared:
        known = self._prepared.get(dfa)
        if known is None:
            following, classes = dfa.table.next, dfa.table.classes
            count, width = following.shape
            rows = np.zeros((count + 1, width), np.int32)
            np.multiply(following + 1, width, out=rows[1:])
            known = _Prepared(rows.ravel(), width, classes.astype(np.int32)[self._labels])
            if len(self._prepared) >= _MOST_PREPARED:
                del self._prepared[next(iter(self._prepared))]
            self._prepared[dfa] = known
        return known

    def _border_by(self, leaving: bytes | None) -> _Border:
        if leaving is None:
            return self._border
        known = self._borders.get(leaving)
        if known is None:
            at = np.flatnonzero(among(leaving)[self._border.labels])
            nodes, parents, labels = self._border
            known = _Border(nodes[at], parents[at], labels[at])
            if len(self._borders) >= _MOST_BORDERS:
                self._borders.clear()
            self._borders[leaving] = known
        return known


_FEW = 256
"""So few nodes are looked at faster one by one."""
_NARROW = 32
"""So are levels of so few: most of the depth is of a few tokens, as those of many dashes."""
_MOST_PREPARED = 4
_MOST_BORDERS = 8


def _each_once(ends: Ints | Longs) -> list[int]:
    return np.flatnonzero(np.bincount(ends)).tolist() if len(ends) else []
