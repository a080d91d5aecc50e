"""Walks of a vocabulary's tree along cursors: which tokens are legal, and where each leads.

`Walk` tells both, from every position anew but for what is below a branch that was met before.
`MaskWalk` tells the tokens only, and goes once through what is alike in many places, as the values
of JSON are. What is found of positions is the engine's to keep.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from phloem.grammar.automaton import Cursor, Part, Region, Run
from phloem.grammar.branches import Branch
from phloem.grammar.sweeps import Exit, Inside, Outline, Sweeps, Template
from phloem.grammar.told_apart import Following, ToldApart

_WORTH_A_SWEEP = 8
_WORTH_A_TEMPLATE = 8
_FEW = 8


class Reach:
    """Where each legal token leads, or which are legal."""

    __slots__ = ("bases", "ends", "listed", "regions", "runs")

    def __init__(self) -> None:
        self.regions: list[Inside] = []
        """By sweeps of regions, from branches of the trie."""
        self.runs: list[tuple[Run, int, Sequence[int]]] = []
        """Into runs, behind so many bytes of them."""
        self.ends: list[tuple[Cursor, Sequence[int]]] = []
        """All others, by cursor; one may be there more than once."""
        self.listed: list[int] = []
        """Tokens of which a `MaskWalk` does not tell where they lead."""
        self.bases: list[npt.NDArray[np.int32]] = []
        """More of them, as rows of a mask."""

    def extend(self, other: Reach) -> None:
        """Add all of another."""
        self.regions += other.regions
        self.runs += other.runs
        self.ends += other.ends
        self.listed += other.listed
        self.bases += other.bases

    def forget_cursors(self) -> None:
        """Keep of the tokens that regions do not tell no more than which they are."""
        self.listed = self.tokens()
        self.ends, self.runs = [], []

    def tokens(self) -> list[int]:
        """The tokens that neither regions nor rows tell."""
        found = self.listed.copy()
        for _, tokens in self.ends:
            found += tokens
        for _, _, tokens in self.runs:
            found += tokens
        return found

    def cursors(self) -> Iterator[tuple[Cursor, Sequence[int]]]:
        """Where tokens lead that are told one by one."""
        yield from self.ends
        for run, count, tokens in self.runs:
            yield run.cursor(count), tokens


class Walk:
    """Walks that tell where tokens lead."""

    _small: int | None = _WORTH_A_SWEEP
    """See `ToldApart`."""

    def __init__(self, sweeps: Sweeps) -> None:
        self._sweeps = sweeps
        self.clear()

    def clear(self) -> None:
        """Forget what was found."""
        self._known: dict[tuple[Branch, Cursor], Reach] = {}
        self.cells = 0
        """About how much is kept."""

    def reach(self, cursor: Cursor) -> Reach:
        """What the tokens of the vocabulary come to from a cursor."""
        reach = Reach()
        for branch, target in self._add(self._sweeps.root, cursor, reach):
            reach.extend(self._below(branch, target))
        return reach

    def _below(self, branch: Branch, cursor: Cursor) -> Reach:
        """What is below a branch; kept, for many positions lead to the same one."""
        known = self._known.get((branch, cursor))
        if known is None:
            known = self._known[branch, cursor] = Reach()
            pending = [(branch, cursor)]
            while pending:
                pending += self._add(*pending.pop(), known)
            self.cells += 4 * (1 + len(known.ends)) + len(known.runs)
        return known

    def _add(self, branch: Branch, cursor: Cursor, reach: Reach) -> Following:
        """Add what is right below a branch."""
        run = cursor.run()
        if run is not None:
            return _along(branch, run, reach)
        region = cursor.region() if branch.size > _WORTH_A_SWEEP else None
        if region is None:
            return _ended(_moved(branch, cursor), reach)
        outline = self._sweeps.outline(region, branch)
        if not region.apart:
            reach.regions.append(Inside(region, branch))
            return _ended(_exits(outline.exits, outline, region), reach)
        told = ToldApart(branch, cursor, region, self._small)
        reach.regions.append(Inside(region, branch, tuple(told.tokens)))
        reach.ends += told.ends
        exits = _other_exits(outline, told.nodes)
        return _ended([*_exits(exits, outline, region), *told.following], reach)


class MaskWalk(Walk):
    """Walks that tell which tokens are legal."""

    _small = None

    def clear(self) -> None:
        """Forget what was found."""
        super().clear()
        self._templates: dict[tuple[object, Branch], Template] = {}

    def _below(self, branch: Branch, cursor: Cursor) -> Reach:
        known = self._known.get((branch, cursor))
        if known is None:
            known = super()._below(branch, cursor)
            known.forget_cursors()
        return known

    def _add(self, branch: Branch, cursor: Cursor, reach: Reach) -> Following:
        part = cursor.part() if branch.size > _WORTH_A_TEMPLATE else None
        if part is None or not part.holds(branch):
            return super()._add(branch, cursor, reach)
        template = self._template(branch, part)
        reach.listed += template.tokens
        if template.bits is not None:
            reach.bases.append(template.bits)
        following = [(behind, part.outer(mark)) for mark, behind in template.exits]
        if part.others:
            following += _ended(_stepped(branch, cursor, part.others), reach)
        return following

    def _template(self, branch: Branch, part: Part) -> Template:
        if part.is_shared:
            return self._sweeps.template(part.key, branch, lambda: self._walked(branch, part))
        key = (part.key, branch)
        template = self._templates.get(key)
        if template is None:
            template = self._templates[key] = self._walked(branch, part)
            self.cells += 8 + len(template.tokens) + 4 * len(template.exits)
            self.cells += 0 if template.bits is None else len(template.bits) // 32
        return template

    def _walked(self, branch: Branch, part: Part) -> Template:
        """What a part comes to below a branch."""
        reach, ends = Reach(), dict[object, list[Branch]]()
        pending: Following = []

        def sort(following: Following) -> None:
            for child, target in following:
                mark = part.mark(target)
                if mark is not None:
                    ends.setdefault(mark, []).append(child)
                if mark is None or target.complete:
                    pending.append((child, target))

        sort([(branch, part.cursor())])
        while pending:
            sort(super()._add(*pending.pop(), reach))
        tokens, rows = self._sweeps.told(reach.tokens(), reach.regions)
        exits = [(mark, self._sweeps.joined(found)) for mark, found in ends.items()]
        return Template.of(tokens, rows, self._sweeps.words, exits)


def _stepped(branch: Branch, cursor: Cursor, some: bytes) -> Following:
    """The branches by some bytes that are legal."""
    found = []
    for byte in some:
        child = branch.below.get(byte)
        target = None if child is None else cursor.step(byte)
        if child is not None and target is not None:
            found.append((child, target))
    return found


def _ended(following: Following, reach: Reach) -> Following:
    """Add the tokens that end right there; the branches below which there is more."""
    further = []
    for one in following:
        child, target = one
        if child.tokens:
            reach.ends.append((target, child.tokens))
        if not child.is_leaf:
            further.append(one)
    return further


def _along(branch: Branch, run: Run, reach: Reach) -> Following:
    """Add what is below a branch along a run; the branch behind it, if there is more."""
    count, length = 0, len(run.text)
    for byte in run.text:
        child = branch.below.get(byte)
        if child is None:
            return []
        branch, count = child, count + 1
        if branch.tokens:
            reach.runs.append((run, count, branch.tokens))
        if branch.is_leaf:
            return []
    return [(branch, run.cursor(length))]


def _moved(branch: Branch, cursor: Cursor) -> Following:
    """The branches one byte further that are legal from a cursor, with where they lead."""
    below = branch.below
    return [(below[byte], target) for byte, target in _moves(cursor, below)]


def _moves(cursor: Cursor, among: Collection[int]) -> list[tuple[int, Cursor]]:
    """Those of some bytes that are legal at a cursor, with where they lead."""
    if len(among) > _FEW:
        return [move for move in cursor.moves(among) if move[0] in among]
    found = []
    for byte in among:
        target = cursor.step(byte)
        if target is not None:
            found.append((byte, target))
    return found


def _other_exits(outline: Outline, left_out: set[int]) -> list[Exit]:
    """Those by other nodes than some."""
    kept = [
        one._replace(nodes=tuple(n for n in one.nodes if n not in left_out))
        for one in outline.exits
    ]
    return [one for one in kept if one.nodes]


def _exits(some: Sequence[Exit], outline: Outline, region: Region) -> Following:
    """The branches by which tokens leave a region, with where they lead."""
    by_state: dict[int, dict[int, Exit]] = {}
    for one in some:
        by_state.setdefault(one.state, {})[one.byte] = one
    exits: dict[Cursor, list[Exit]] = {}
    for state, by_byte in by_state.items():
        for byte, target in _moves(region.cursor(state), by_byte):
            exits.setdefault(target, []).append(by_byte[byte])
    return [(outline.behind(found), target) for target, found in exits.items()]
