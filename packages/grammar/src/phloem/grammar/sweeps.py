"""What sweeps of a vocabulary found, kept for all grammars over it: many share their regions."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
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

    def __init__(
        self,
        branch: Branch,
        tokens: list[int],
        bits: Row | None,
        exits: Sequence[Exit],
        shared: Branches,
    ) -> None:
        self.tokens = tokens
        """The tokens that stay inside, if they are few; otherwise none."""
        self.bits = bits
        """int32 [words]: the tokens that stay inside, if they are not few."""
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
        is_few = len(sweep.tokens) <= _FEW
        tokens = sweep.tokens.tolist() if is_few else []
        bits = None if is_few else row_of(sweep.tokens, words)
        outline = cls(branch, tokens, bits, exits, {})
        outline.end_states = sweep.end_states
        return outline

    def without(self, firsts: bytes, left_out: Sequence[Row]) -> Outline:
        """That of the tokens which begin with none of some bytes; `left_out` has all that do."""
        tokens, bits, exits = self.tokens, self.bits, []
        if bits is not None:
            bits = bits.copy()
            for row in left_out:
                bits &= ~row
        else:
            tokens = [t for t in tokens if not any(row[t >> 5] >> (t & 31) & 1 for row in left_out)]
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
        return Outline(self._branch, tokens, bits, exits, self._shared)

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
        self._words = vocabulary.words
        self._rows: OrderedDict[Key, Row] = OrderedDict()
        self._outlines: OrderedDict[Key, Outline] = OrderedDict()
        self._sweeps: OrderedDict[Key, Sweep] = OrderedDict()

    def outline(self, region: Region, branch: Branch) -> Outline:
        """The tokens below a branch, from where a region is, but for those told apart."""
        key = (region.dfa, region.state, region.leaving, branch)
        if region.apart:
            return _kept(
                self._outlines,
                (*key, region.apart),
                lambda: self._outline_without(region, branch),
                _OUTLINES,
            )
        leaving = b"" if region.closed else region.leaving
        return _kept(
            self._outlines,
            key,
            lambda: Outline.of(branch, self._swept(region, branch), self._words, leaving),
            _OUTLINES,
        )

    def _outline_without(self, region: Region, branch: Branch) -> Outline:
        # Tokens that leave by their first byte are none of those that stay.
        firsts = [byte for byte in region.apart if region.dfa.step(region.state, byte) >= 0]
        left_out = [
            _kept(
                self._rows,
                (branch, byte),
                lambda byte=byte: row_of(branch.tokens_below(bytes((byte,))), self._words),  # type: ignore[misc]
                _ROWS,
            )
            for byte in firsts
        ]
        return self.outline(region._replace(apart=b""), branch).without(region.apart, left_out)

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


_FEW = 64
_OUTLINES = 1024  # of up to 6 KB for 50,000 tokens
_ROWS = 256
_WHOLE = 16
