"""Shortest ways to the end of a text through a DFA, by characters that people would write."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Set
from functools import cached_property

import numpy as np
import numpy.typing as npt

from phloem.grammar.dfa import Dfa
from phloem.grammar.json_machine.spelling import PLAIN, spelled

_FIRST = b"abcdefghijklmnopqrstuvwxyz0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_REST = bytes(sorted(set(PLAIN) - set(_FIRST))) + bytes(sorted(set(range(256)) - set(PLAIN)))
PREFERENCE = _FIRST + _REST
"""All bytes, those that are preferred among equally short ways first."""

_ORDER = np.frombuffer(PREFERENCE, np.uint8)
_BLOCK = 256
_FAR = np.iinfo(np.int32).max


class Paths:
    """The way from each state of a DFA: the way from a state on it is the rest of it."""

    def __init__(self, dfa: Dfa) -> None:
        self.dfa = dfa
        self.lengths: list[int] = dfa.byte_distances.tolist()
        """[states]: how many bytes it takes to the end."""
        self._hops: dict[int, list[tuple[int, int]]] = {}
        self._sorted: dict[int, list[tuple[int, int]]] = {}

    def hop(self, state: int) -> tuple[int, int]:
        """The first byte of the way from a state that is not accepting, and the state after it."""
        block = self._hops.get(state // _BLOCK)
        if block is None:
            block = self._hops[state // _BLOCK] = self._hops_of(state // _BLOCK)
        return block[state % _BLOCK]

    def _hops_of(self, block: int) -> list[tuple[int, int]]:
        """Many at a time, for one takes about as long."""
        rows = self.dfa.table.next[block * _BLOCK : (block + 1) * _BLOCK, self._preferred[0]]
        best = np.append(self.dfa.byte_distances, _FAR)[rows].argmin(axis=1)
        targets = rows[np.arange(len(rows)), best]
        return list(zip(self._preferred[1][best].tolist(), targets.tolist(), strict=True))

    @cached_property
    def _preferred(self) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
        """The classes of bytes, preferred ones first, and the preferred byte of each."""
        classes = self.dfa.table.classes[_ORDER]
        firsts = np.sort(np.unique(classes, return_index=True)[1])
        return classes[firsts], _ORDER[firsts]

    def walk(self, state: int, count: int) -> tuple[bytes, int]:
        """The first `count` bytes of the way, and the state after them."""
        path = bytearray()
        for _ in range(count):
            byte, state = self.hop(state)
            path.append(byte)
        return bytes(path), state

    def shortest(self, state: int = 0) -> bytes:
        """The whole way."""
        return self.walk(state, self.lengths[state])[0]

    def by_length(self, state: int) -> list[tuple[int, int]]:
        """The bytes that may come next and the states after them, shortest ways first."""
        known = self._sorted.get(state)
        if known is None:
            table = self.dfa.table
            targets = table.next[state][table.classes[_ORDER]].tolist()
            pairs = [pair for pair in zip(PREFERENCE, targets, strict=True) if pair[1] >= 0]
            known = sorted(pairs, key=lambda pair: self.lengths[pair[1]])
            self._sorted[state] = known
        return known

    @cached_property
    def longest_spelled(self) -> tuple[int, frozenset[int]]:
        """The bytes of the longest way as it is spelled in JSON, and all bytes of all ways."""
        lengths, bytes_of_all = dict[int, int](), set[int]()
        for state in sorted(range(len(self.lengths)), key=self.lengths.__getitem__):
            if not self.lengths[state]:
                lengths[state] = 0
                continue
            byte, following = self.hop(state)
            spelling = spelled(bytes([byte]))
            bytes_of_all.update(spelling)
            lengths[state] = len(spelling) + lengths[following]
        return max(lengths.values()), frozenset(bytes_of_all)

    @property
    def heights(self) -> list[int]:
        """[states]: the most bytes that can follow; -1 without a limit."""
        return self.dfa.heights

    @cached_property
    def unbounded(self) -> bool:
        """Whether infinitely many texts can follow every state."""
        return all(height < 0 for height in self.heights)

    def words(self, state: int) -> int:
        """How many texts can follow a state from which there is a limit."""
        return self._words[state]

    @cached_property
    def _words(self) -> dict[int, int]:
        table = self.dfa.table
        sizes = np.bincount(table.classes, minlength=table.next.shape[1]).tolist()
        rows = table.next.tolist()
        counts: dict[int, int] = {}
        bounded = [state for state, height in enumerate(self.heights) if height >= 0]
        for state in sorted(bounded, key=self.heights.__getitem__):
            counts[state] = int(table.accepting[state]) + sum(
                size * counts[target]
                for size, target in zip(sizes, rows[state], strict=True)
                if target >= 0
            )
        return counts


class ShortestTexts:
    """All texts from a state of a DFA, the shortest first, found as far as they are asked for.

    Equally short ones are in the order of `Paths.by_length` at the first byte that differs, so the
    order of the texts from a state on the way is that of their rests.
    """

    def __init__(self, paths: Paths, state: int) -> None:
        self._known: list[bytes] = []
        self._further = self._search(paths, state)

    def first_without(self, used: Set[bytes]) -> bytes:
        """The first that is none of some; empty where they are all."""
        for text in self._known:
            if text not in used:
                return text
        for text in self._further:
            self._known.append(text)
            if text not in used:
                return text
        return b""

    @staticmethod
    def _search(paths: Paths, state: int) -> Iterator[bytes]:
        """Best first, by the length of the shortest text that begins so, which is exact."""
        pending: list[tuple[int, tuple[int, ...], bytes, int]] = []
        heapq.heappush(pending, (paths.lengths[state], (), b"", state))
        while pending:
            length, ranks, text, state = heapq.heappop(pending)
            if state < 0:
                yield text
                continue
            if not paths.lengths[state]:
                heapq.heappush(pending, (length, (*ranks, -1), text, -1))
            for rank, (byte, target) in enumerate(paths.by_length(state)):
                further = len(text) + 1 + paths.lengths[target]
                heapq.heappush(pending, (further, (*ranks, rank), text + bytes([byte]), target))
