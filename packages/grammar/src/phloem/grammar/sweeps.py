"""What sweeps of a vocabulary found, kept for all grammars over it: many share their regions."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from phloem.grammar.automaton import Region
from phloem.grammar.branches import Branch
from phloem.grammar.mask_rows import row_of
from phloem.grammar.token_trie import Sweep
from phloem.grammar.vocabulary import Vocabulary

Row = npt.NDArray[np.int32]
Branches = dict[tuple[tuple[int, ...], ...], Branch]
Key = tuple[object, ...]
Found = TypeVar("Found")


class Exit(NamedTuple):
    """Tokens that leave a region by one byte in one state."""

    state: int
    byte: int
    nodes: tuple[int, ...]
    """Where they are then."""


class Outline:
    """A sweep without what is large: as a row of a mask, and by the bytes that leave the region."""

    def __init__(self, branch: Branch, bits: Row, exits: Sequence[Exit], shared: Branches) -> None:
        self.bits = bits
        """int32 [words]: the tokens that stay inside."""
        self.end_states: list[int] | None = None
        """Each state that one of them leads to, once; None: not known yet."""
        self.exits = exits
        self._branch = branch
        self._shared = shared

    @classmethod
    def of(cls, branch: Branch, sweep: Sweep, words: int, leaving: bytes | None) -> Outline:
        """That of a sweep; exits by other bytes than `leaving` are left out (None: all stay)."""
        kept = np.ones(len(sweep.exits), bool)
        if leaving is not None:
            kept = np.isin(sweep.exit_bytes, np.frombuffer(leaving, np.uint8))
        groups: dict[tuple[int, int], list[int]] = {}
        for node, state, byte in zip(
            sweep.exits[kept].tolist(),
            sweep.exit_states[kept].tolist(),
            sweep.exit_bytes[kept].tolist(),
            strict=True,
        ):
            groups.setdefault((state, byte), []).append(node)
        exits = [Exit(*key, tuple(nodes)) for key, nodes in groups.items()]
        outline = cls(branch, row_of(sweep.tokens, words), exits, {})
        outline.end_states = sweep.end_states
        return outline

    def without(self, firsts: bytes) -> Outline:
        """That of the tokens which begin with none of some bytes."""
        branch = self._branch
        left_out = row_of(branch.tokens_below(firsts), len(self.bits))
        exits = []
        for one in self.exits:
            nodes = tuple(
                n
                for n, first in zip(one.nodes, self._firsts(one), strict=True)
                if first not in firsts
            )
            if len(nodes) == len(one.nodes):
                exits.append(one)
            elif nodes:
                exits.append(one._replace(nodes=nodes))
        return Outline(branch, self.bits & ~left_out, exits, self._shared)

    @cached_property
    def _first_bytes(self) -> dict[int, int]:
        """By node of an exit: the first byte on the way to it."""
        return {node: self._branch.first_byte(node) for one in self.exits for node in one.nodes}

    def _firsts(self, one: Exit) -> list[int]:
        return [self._first_bytes[node] for node in one.nodes]

    def behind(self, exits: Sequence[Exit]) -> Branch:
        """Where the tokens of some exits go on."""
        key = tuple(one.nodes for one in exits)
        branch = self._shared.get(key)
        if branch is None:
            nodes = [node for part in key for node in part]
            branch = self._shared[key] = self._branch.others(nodes)
        return branch


class Sweeps:
    """The sweeps of a vocabulary, the latest kept."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self.root = Branch(vocabulary.trie, (0,))
        """The whole vocabulary."""
        self._outlines: OrderedDict[Key, Outline] = OrderedDict()
        self._sweeps: OrderedDict[Key, Sweep] = OrderedDict()

    def outline(self, region: Region, branch: Branch) -> Outline:
        """The tokens below a branch, from where a region is, but for those told apart."""
        key = (region.dfa, region.state, region.leaving, branch)
        if region.apart:
            base = replace(region, apart=b"")
            return _kept(
                self._outlines,
                (*key, region.apart),
                lambda: self.outline(base, branch).without(region.apart),
                _OUTLINES,
            )
        leaving = b"" if region.closed else region.leaving
        words = self._vocabulary.words
        return _kept(
            self._outlines,
            key,
            lambda: Outline.of(branch, self._swept(region, branch), words, leaving),
            _OUTLINES,
        )

    def end_states(self, region: Region, branch: Branch) -> list[int]:
        """Each state that such a token leads to, once."""
        outline = self.outline(region, branch)
        if outline.end_states is None:
            outline.end_states = self.whole(region, branch).end_states
        return outline.end_states

    def whole(self, region: Region, branch: Branch) -> Sweep:
        """The same with where each token leads. Large, so fewer are kept."""
        return _kept(
            self._sweeps,
            (region.dfa, region.state, branch, region.apart),
            lambda: self._swept(region, branch).without(branch.tokens_below(region.apart)),
            _WHOLE,
        )

    def _swept(self, region: Region, branch: Branch) -> Sweep:
        return self._vocabulary.trie.sweep(region.dfa, region.state, branch.nodes)


def _kept(
    known: OrderedDict[Key, Found], key: Key, find: Callable[[], Found], capacity: int
) -> Found:
    found = known.get(key)
    if found is None:
        found = known[key] = find()
        if len(known) > capacity:
            known.popitem(last=False)
    else:
        known.move_to_end(key)
    return found


_OUTLINES = 1024  # of about 6 KB for 50,000 tokens
_WHOLE = 16
