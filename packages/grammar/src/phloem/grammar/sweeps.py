"""What sweeps of a vocabulary found, kept for all grammars over it: many share their regions."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import cached_property
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from phloem.grammar.automaton import Region
from phloem.grammar.branches import Branch
from phloem.grammar.dfa.table import Bools
from phloem.grammar.token_trie import Sweep, TokenTrie
from phloem.grammar.vocabulary import Vocabulary

Key = tuple[object, ...]
Found = TypeVar("Found")


class Outline:
    """A sweep without what is large: as a row of a mask, and by the bytes that leave the region."""

    def __init__(self, trie: TokenTrie, sweep: Sweep, words: int, leaving: bytes | None) -> None:
        bits: Bools = np.zeros(words * 32, bool)
        bits[sweep.tokens] = True
        self.bits = packed(bits)
        """int32 [words]: the tokens that stay inside."""
        self.end_states = sweep.end_states
        """Each state that one of them leads to, once."""
        self._trie = trie
        groups: dict[tuple[int, int], list[int]] = {}
        kept = slice(None)
        if leaving is not None:
            kept = np.isin(sweep.exit_bytes, np.frombuffer(leaving, np.uint8))  # type: ignore[assignment]
        for node, state, byte in zip(
            sweep.exits[kept].tolist(),
            sweep.exit_states[kept].tolist(),
            sweep.exit_bytes[kept].tolist(),
            strict=True,
        ):
            groups.setdefault((state, byte), []).append(node)
        self.exits = tuple(groups)
        """States with bytes that some tokens leave them by."""
        self._nodes = tuple(groups.values())
        self._branches: dict[tuple[int, ...], Branch] = {}

    def branch(self, exits: tuple[int, ...]) -> Branch:
        """What is behind some exits, given by their indices."""
        branch = self._branches.get(exits)
        if branch is None:
            nodes = [node for number in exits for node in self._nodes[number]]
            branch = self._branches[exits] = Branch(self._trie, nodes)
        return branch


class Sweeps:
    """The sweeps of a vocabulary, the latest kept."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._outlines: OrderedDict[Key, Outline] = OrderedDict()
        self._sweeps: OrderedDict[Key, Sweep] = OrderedDict()

    @cached_property
    def root(self) -> Branch:
        """The whole vocabulary."""
        return Branch(self._vocabulary.trie, (0,))

    def outline(self, region: Region, branch: Branch) -> Outline:
        """All tokens below a branch, from where a region is."""
        vocabulary = self._vocabulary
        return _kept(
            self._outlines,
            (region.dfa, region.state, region.leaving, branch),
            lambda: Outline(
                vocabulary.trie,
                vocabulary.trie.sweep(region.dfa, region.state, branch.nodes),
                vocabulary.words,
                b"" if region.closed else region.leaving,
            ),
            _OUTLINES,
        )

    def whole(self, region: Region, branch: Branch) -> Sweep:
        """The same with where each token leads. Large, so fewer are kept."""
        return _kept(
            self._sweeps,
            (region.dfa, region.state, branch),
            lambda: self._vocabulary.trie.sweep(region.dfa, region.state, branch.nodes),
            _WHOLE,
        )


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


def packed(bits: Bools) -> npt.NDArray[np.int32]:
    """Booleans [32 * words] as one row of a mask, int32 [words]."""
    return np.packbits(bits, bitorder="little").view("<i4").astype(np.int32, copy=False)


_OUTLINES = 1024  # of about 6 KB for 50,000 tokens
_WHOLE = 16
