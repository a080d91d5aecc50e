"""What sweeps of a vocabulary found, kept for all grammars over it: many share their regions."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from phloem.grammar.automaton import Region
from phloem.grammar.branches import Branch
from phloem.grammar.mask_rows import row_of
from phloem.grammar.narrow_trie import Sweep
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
    def of(cls, branch: Branch, sweep: Sweep, words: int) -> Outline:
        """That of a sweep."""
        groups: dict[tuple[int, int], list[int]] = {}
        for node, state, byte in zip(
            sweep.exits.tolist(), sweep.exit_states.tolist(), sweep.exit_bytes.tolist(), strict=True
        ):
            groups.setdefault((state, byte), []).append(node)
        exits = [Exit(*key, tuple(nodes)) for key, nodes in groups.items()]
        is_few = len(sweep.tokens) <= _FEW
        tokens = sweep.tokens.tolist() if is_few else []
        bits = None if is_few else row_of(sweep.tokens, words)
        outline = cls(branch, tokens, bits, exits, {})
        outline.end_states = sweep.end_states
        return outline

    def behind(self, exits: Sequence[Exit]) -> Branch:
        """Where the tokens of some exits go on."""
        key = tuple(one.nodes for one in exits)
        branch = self._shared.get(key)
        if branch is None:
            nodes = [node for part in key for node in part]
            branch = self._shared[key] = self._branch.others(nodes)
        return branch


class FromFirst:
    """The sweep from the first state of a DFA that counts, which tells those from all others: see
    `Moved`. Most tokens are so short that few are missing in any of them.
    """

    def __init__(self, branch: Branch, sweep: Sweep, words: int) -> None:
        order = np.argsort(sweep.ends, kind="stable")
        self.sweep = replace(sweep, tokens=sweep.tokens[order], ends=sweep.ends[order])
        """By ascending end."""
        self._counts: list[int] = np.cumsum(np.bincount(sweep.ends)).tolist()
        """By state: the tokens that lead to it or to one before."""
        self._branch, self._words = branch, words
        self._bits = row_of(sweep.tokens, words)
        self._exits = Outline.of(branch, sweep, words).exits
        self._shared: Branches = {}

    def outline(self, by: int, last: int) -> Outline:
        """That of the sweep from the state that is `by` further."""
        sweep, last = self.sweep, last - by
        count = self._counts[min(last, len(self._counts) - 1)] if self._counts else 0
        is_few = count <= _FEW
        outline = Outline(
            self._branch,
            sweep.tokens[:count].tolist() if is_few else [],
            None if is_few else self._bits & ~row_of(sweep.tokens[count:], self._words),
            [one._replace(state=one.state + by) for one in self._exits if one.state <= last],
            self._shared,
        )
        outline.end_states = [end + by for end in sweep.end_states if end <= last]
        return outline


class Template(NamedTuple):
    """What a `Part` comes to below a branch, wherever it stands."""

    tokens: list[int]
    """The tokens that the part tells, if they are few; otherwise none."""
    bits: Row | None
    """int32 [words]: these tokens, if they are not few."""
    exits: list[tuple[object, Branch]]
    """Marks that the part comes to, each once, with where more tokens go on."""

    @classmethod
    def of(
        cls, tokens: list[int], rows: list[Row], words: int, exits: list[tuple[object, Branch]]
    ) -> Template:
        """That of some tokens and rows of more."""
        if not rows and len(tokens) <= _FEW:
            return cls(tokens, None, exits)
        row = row_of(tokens, words)
        for other in rows:
            row |= other
        return cls([], row, exits)


class Inside(NamedTuple):
    """Tokens that stay inside a region."""

    region: Region
    branch: Branch
    """Where they begin."""
    without: tuple[int, ...] = ()
    """Those of which the region has nothing to tell."""


class Sweeps:
    """The sweeps of a vocabulary, the latest kept."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self.root = Branch(vocabulary.trie, (0,))
        """The whole vocabulary."""
        self.words = vocabulary.words
        self._outlines: OrderedDict[Key, Outline] = OrderedDict()
        self._sweeps: OrderedDict[Key, Sweep] = OrderedDict()
        self._firsts: OrderedDict[Key, FromFirst] = OrderedDict()
        self._templates: OrderedDict[Key, Template] = OrderedDict()
        self._joined: OrderedDict[Key, Branch] = OrderedDict()

    def outline(self, region: Region, branch: Branch) -> Outline:
        """The tokens below a branch, from where a region is, whatever its cursor tells apart."""
        return _kept(
            self._outlines,
            (region.dfa, region.state, region.leaving, branch),
            lambda: self._outlined(region, branch),
            _OUTLINES,
        )

    def template(self, key: Key, branch: Branch, find: Callable[[], Template]) -> Template:
        """What a part of a key, which is good for all automata, comes to below a branch."""
        return _kept(self._templates, (key, branch), find, _OUTLINES)

    def joined(self, branches: Sequence[Branch]) -> Branch:
        """The nodes of some branches as one."""
        if len(branches) == 1:
            return branches[0]
        nodes = tuple([node for branch in branches for node in branch.nodes])
        return _kept(self._joined, nodes, lambda: self.root.others(nodes), _OUTLINES)

    def told(self, tokens: list[int], regions: Sequence[Inside]) -> tuple[list[int], list[Row]]:
        """Some tokens, and those that stay inside regions as more of them or as rows."""
        rows = []
        for region, branch, without in regions:
            outline = self.outline(region, branch)
            tokens += [t for t in outline.tokens if t not in without] if without else outline.tokens
            if outline.bits is not None:
                bits = outline.bits
                rows.append(bits & ~row_of([*without], self.words) if without else bits)
        return tokens, rows

    def end_states(self, inside: Inside) -> list[int]:
        """Each state that such a token leads to, once."""
        region, branch, without = inside
        outline = self.outline(region, branch)
        if without:
            return self.whole(inside).end_states
        if outline.end_states is None:
            outline.end_states = self.whole(inside).end_states
        return outline.end_states

    def whole(self, inside: Inside) -> Sweep:
        """The same with where each token leads. Large, so fewer are kept."""
        region, branch, without = inside
        return _kept(
            self._sweeps,
            (region.dfa, region.state, branch, without),
            lambda: (
                self.whole(Inside(region, branch)).without(without)
                if without
                else self._swept(region, branch)
            ),
            _WHOLE,
        )

    def _swept(self, region: Region, branch: Branch) -> Sweep:
        if region.moved is not None and branch.size > _SMALL:
            return self._from_first(region, branch).sweep.moved(*region.moved)
        return self._swept_from(region, region.state, branch)

    def _outlined(self, region: Region, branch: Branch) -> Outline:
        if region.moved is not None and branch.size > _SMALL:
            return self._from_first(region, branch).outline(*region.moved)
        return Outline.of(branch, self._swept(region, branch), self.words)

    def _from_first(self, region: Region, branch: Branch) -> FromFirst:
        assert region.moved is not None, "only states that are moved have a first one"
        first = region.state - region.moved.by
        return _kept(
            self._firsts,
            (region.dfa, first, region.leaving, branch),
            lambda: FromFirst(branch, self._swept_from(region, first, branch), self.words),
            _WHOLE,
        )

    def _swept_from(self, region: Region, state: int, branch: Branch) -> Sweep:
        leaving = b"" if region.closed else region.leaving
        return self._vocabulary.trie.sweep(region.dfa, state, branch.nodes, leaving)


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
_SMALL = 256
"""So small branches are swept as fast as a sweep of them is moved."""
_OUTLINES = 1024  # of up to 6 KB for 50,000 tokens
_WHOLE = 16
