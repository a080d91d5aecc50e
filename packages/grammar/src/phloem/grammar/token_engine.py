"""The engine that turns any byte automaton into token masks over a vocabulary.

It owns the caches: positions by cursor, the position after a token, and one mask row per distinct
set of tokens. A new position costs a walk of the token trie (or a sweep, where the cursor tells a
region); a known one costs a lookup and the copy of a row. Which text was said is the matcher's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from phloem.grammar.automaton import UNSPELLABLE, Cursor, Region
from phloem.grammar.branches import Branch
from phloem.grammar.mask_rows import MaskRows, row_of
from phloem.grammar.sweeps import Exit, Outline, Sweeps
from phloem.grammar.vocabulary import Vocabulary


class Position:
    """A cursor with what is known about it. Identity is equality: an engine interns them."""

    __slots__ = (
        *("cursor", "distance", "final", "forced", "next", "region", "row", "steered", "steps"),
        "worst",
    )

    def __init__(self, cursor: Cursor | None) -> None:
        self.cursor = cursor
        """None: the text was ended by a stop token."""
        self.final = cursor is None or (
            cursor.complete and next(iter(cursor.first_bytes()), None) is None
        )
        """Whether nothing can follow."""
        self.forget()

    def forget(self) -> None:
        """Drop what can be found out again."""
        self.row = -1
        self.next: dict[int, Position] = _NOTHING
        """By token; legal ones only."""
        self.steps: dict[int, Position | None] = _NOTHING
        """By byte."""
        self.region: Region | Literal[False] | None = False
        """False: not asked yet."""
        self.distance = -1
        self.worst = -1
        """The greatest distance that a legal token leads to; 0 where it cannot be told."""
        self.steered: dict[int, npt.NDArray[np.int32]] = _NOTHING
        """By tokens that are left: the mask of those that lead near enough to the end."""
        self.forced: bytes | None = None


class Reach:
    """Where each legal token leads."""

    __slots__ = ("regions", "targets")

    def __init__(self) -> None:
        self.regions: list[tuple[Region, Branch]] = []
        """By sweeps of regions, from branches of the trie."""
        self.targets: dict[Position, list[int]] = {}
        """All others, by position."""

    def add(self, target: Position, tokens: Sequence[int]) -> None:
        """Add tokens that lead to a position."""
        known = self.targets.get(target)
        if known is None:
            self.targets[target] = [*tokens]
        else:
            known += tokens


class TokenEngine:
    """Positions of one automaton over one vocabulary. Used by one thread."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        start: Cursor,
        sweeps: Sweeps | None = None,
        cache_bytes: int = 16 << 20,
    ) -> None:
        self.vocabulary = vocabulary
        self.ended = Position(None)
        self.rows = MaskRows(vocabulary.words, cache_bytes)
        self._words = vocabulary.words
        self._start = start
        self._sweeps = sweeps or Sweeps(vocabulary)
        self._positions: dict[Cursor, Position] = {}
        self._parts: dict[tuple[Branch, Position], Reach] = {}
        self._filled: list[Position] = []
        self._cells, self._most_cells = 0, cache_bytes // _CELL_BYTES

    def start(self) -> Position:
        """The position at the beginning of a text."""
        return self.at(self._start)

    def at(self, cursor: Cursor) -> Position:
        """The one position of a cursor."""
        position = self._positions.get(cursor)
        if position is None:
            self._cells += 4
            position = self._positions[cursor] = Position(cursor)
        return position

    def step(self, position: Position, byte: int) -> Position | None:
        """The position after one byte."""
        if byte in position.steps:
            return position.steps[byte]
        cursor = position.cursor.step(byte) if position.cursor is not None else None
        target = None if cursor is None else self.at(cursor)
        if not position.steps:
            position.steps = {}
        position.steps[byte] = target
        self._cells += 1
        return target

    def advance(self, position: Position, token: int) -> Position | None:
        """The position after a token; None if it is not legal there."""
        known = position.next.get(token)
        if known is not None:
            return known
        self._make_room()
        target: Position | None
        if token in self.vocabulary.stop_ids:
            target = self.ended if is_complete(position) and position.cursor else None
        elif 0 <= token < self.vocabulary.size:
            target = self._after(position, self.vocabulary.tokens[token])
        else:
            target = None
        if target is not None:
            if not position.next:
                position.next = {}
            position.next[token] = target
            self._cells += 1
        return target

    def row(self, position: Position) -> int:
        """The row of `rows` with the mask of a position."""
        if position.row < 0:
            self._make_room()
            self._learn(position, self._reached(position))
        return position.row

    def near_end(self, position: Position, tokens_left: int) -> npt.NDArray[np.int32] | None:
        """The mask of tokens after which the text can still end in time; None if all can.

        Where no token is in time, those on a shortest way. None as well where the automaton
        cannot tell distances.
        """
        if 0 <= position.worst < tokens_left:
            return None
        known = position.steered.get(tokens_left)
        if known is not None:
            return known
        self._make_room()
        reach = self._reached(position)
        if position.row < 0:
            self._learn(position, reach)
        distances = self._distances(reach)
        position.worst = max(distances.values(), default=0)
        if position.worst < tokens_left or not distances:
            return None
        limit = tokens_left - 1
        if not is_complete(position):
            limit = max(limit, min(distances.values()))
        row = self._mask(position, reach, limit)
        if not position.steered:
            position.steered = {}
        position.steered[tokens_left] = row
        self._cells += row.nbytes // _CELL_BYTES
        return row

    def distance(self, position: Position) -> int | None:
        """`Cursor.distance` with the costs of this vocabulary."""
        if position.cursor is None:
            return 0
        if position.distance == -1:
            told = position.cursor.distance(self.vocabulary.cost)
            position.distance = _UNKNOWN if told is None else min(told, UNSPELLABLE)
        return None if position.distance == _UNKNOWN else position.distance

    def forced(self, position: Position) -> bytes:
        """The bytes that must come next whatever is chosen."""
        if position.forced is None:
            start, text = position, bytearray()
            while position.cursor is not None and not position.cursor.complete:
                choices = iter(position.cursor.first_bytes())
                only = next(choices, None)
                if only is None or next(choices, None) is not None:
                    break
                following = self.step(position, only)
                if following is None:
                    break
                text.append(only)
                position = following
            start.forced = bytes(text)
            self._cells += len(text) // _CELL_BYTES
            return start.forced
        return position.forced

    # Walks.

    def _after(self, position: Position, token: bytes | None) -> Position | None:
        if token is None or position.cursor is None:
            return None
        for byte in token:
            target = self.step(position, byte)
            if target is None:
                return None
            position = target
        return position

    def _learn(self, position: Position, reach: Reach) -> None:
        position.row = self.rows.add(self._mask(position, reach))
        self._filled.append(position)

    def _mask(
        self, position: Position, reach: Reach, most: int | None = None
    ) -> npt.NDArray[np.int32]:
        """The mask of the tokens behind which the end is `most` tokens away; None: of all."""
        listed: list[int] = []
        for target, tokens in reach.targets.items():
            if most is None or self._is_near(target, most):
                listed += tokens
        if position.cursor is not None and position.cursor.complete:
            listed += self.vocabulary.stop_ids
        row = row_of(listed, self._words)
        for region, branch in reach.regions:
            if most is None:
                row |= self._sweeps.outline(region, branch).bits
            else:
                row |= self._near_inside(region, branch, most)
        return row

    def _near_inside(self, region: Region, branch: Branch, most: int) -> npt.NDArray[np.int32]:
        sweep = self._sweeps.whole(region, branch)
        states = np.zeros(region.dfa.states, bool)
        for end in sweep.end_states:
            states[end] = self._is_near(self.at(region.cursor(end)), most)
        return row_of(sweep.tokens[states[sweep.ends]], self._words)

    def _is_near(self, position: Position, most: int) -> bool:
        distance = self.distance(position)
        return distance is not None and distance <= most

    def _distances(self, reach: Reach) -> dict[Position, int]:
        """How far it is from where tokens lead; nothing if the automaton cannot tell."""
        ends = [
            self.at(region.cursor(end))
            for region, branch in reach.regions
            for end in self._sweeps.end_states(region, branch)
        ]
        found = {target: self.distance(target) for target in (*ends, *reach.targets)}
        known = {target: far for target, far in found.items() if far is not None}
        return known if len(known) == len(found) else {}

    def _reached(self, position: Position) -> Reach:
        reach = Reach()
        for child, target in self._add(self._sweeps.root, position, reach):
            part = self._part(child, target)
            reach.regions.extend(part.regions)
            for end, tokens in part.targets.items():
                reach.add(end, tokens)
        return reach

    def _part(self, branch: Branch, position: Position) -> Reach:
        """What a walk finds below a branch; kept, for many positions lead to the same one."""
        part = self._parts.get((branch, position))
        if part is None:
            part = self._parts[branch, position] = Reach()
            pending = [(branch, position)]
            while pending:
                inner, reached = pending.pop()
                pending += self._add(inner, reached, part)
            self._cells += 4 + len(part.targets)
        return part

    def _add(
        self, branch: Branch, position: Position, reach: Reach
    ) -> list[tuple[Branch, Position]]:
        """Add what is right below a branch; the branches below which there is more."""
        if position.cursor is None:
            return []
        region = None
        if branch.size > _WORTH_A_SWEEP:
            if position.region is False:
                position.region = position.cursor.region()
            region = position.region
        if region is None:
            following = self._below(branch, position)
        else:
            reach.regions.append((region, branch))
            following = self._exits(self._sweeps.outline(region, branch), region)
            for byte in region.apart:
                child = branch.below.get(byte)
                target = None if child is None else self.step(position, byte)
                if child is not None and target is not None:
                    following.append((child, target))
        further = []
        for child, target in following:
            if child.tokens:
                reach.add(target, child.tokens)
            if not child.is_leaf:
                further.append((child, target))
        return further

    def _below(self, branch: Branch, position: Position) -> list[tuple[Branch, Position]]:
        """The branches one byte further that are legal from a position, with where they lead."""
        found = []
        below, steps = branch.below, position.steps
        if len(below) > _FEW and position.cursor is not None:
            for byte in position.cursor.first_bytes():
                if byte in below:
                    target = self.step(position, byte)
                    if target is not None:
                        found.append((below[byte], target))
            return found
        for byte, child in below.items():
            target = steps[byte] if byte in steps else self.step(position, byte)
            if target is not None:
                found.append((child, target))
        return found

    def _exits(self, outline: Outline, region: Region) -> list[tuple[Branch, Position]]:
        """The branches by which tokens leave a region, with where they lead."""
        sources: dict[int, Position] = {}
        exits: dict[Position, list[Exit]] = {}
        for one in outline.exits:
            source = sources.get(one.state)
            if source is None:
                source = sources[one.state] = self.at(region.cursor(one.state))
            target = self.step(source, one.byte)
            if target is not None:
                exits.setdefault(target, []).append(one)
        return [(outline.behind(found), target) for target, found in exits.items()]

    def _make_room(self) -> None:
        if self.rows.is_full or self._cells > self._most_cells:
            self._start_over()

    def _start_over(self) -> None:
        """Forget all positions. Those that matchers hold are still right, and learn anew."""
        for position in (*self._positions.values(), *self._filled):
            position.forget()
        self._positions.clear()
        self._filled.clear()
        self._parts.clear()
        self.rows.clear()
        self._cells = 0


def is_complete(position: Position) -> bool:
    """Whether the text may end at a position, or has."""
    return position.cursor is None or position.cursor.complete


_NOTHING: dict[int, Any] = {}
"""What positions have in place of dictionaries until those are written; never written itself."""
_CELL_BYTES = 128  # about what an entry of a dictionary and its share of an object take
_WORTH_A_SWEEP = 32
_FEW = 8
_UNKNOWN = -2
