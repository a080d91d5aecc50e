"""The engine that turns any byte automaton into token masks over a vocabulary.

It owns the caches: positions by cursor, the position after a token, and one mask row per distinct
set of tokens. A new position costs a walk of the token trie (or a sweep, where the cursor tells a
region); a known one costs a lookup and the copy of a row. Which text was said is the matcher's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from phloem.grammar.automaton import UNSPELLABLE, Cursor, Region, Run
from phloem.grammar.branches import Branch
from phloem.grammar.mask_rows import MaskRows, row_of
from phloem.grammar.sweeps import Exit, Outline, Sweeps
from phloem.grammar.vocabulary import Vocabulary


class Position:
    """A cursor with what is known about it. Identity is equality: an engine interns them."""

    __slots__ = ("cursor", "distance", "final", "forced", "next", "row", "steered", "worst")

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
        self.distance = -1
        self.worst = -1
        """The greatest distance that a legal token leads to; 0 where it cannot be told."""
        self.steered: dict[int, npt.NDArray[np.int32]] = _NOTHING
        """By tokens that are left: the mask of those that lead near enough to the end."""
        self.forced: bytes | None = None


class Reach:
    """Where each legal token leads."""

    __slots__ = ("ends", "regions", "runs")

    def __init__(self) -> None:
        self.regions: list[tuple[Region, Branch]] = []
        """By sweeps of regions, from branches of the trie."""
        self.runs: list[tuple[Run, int, Sequence[int]]] = []
        """Into runs, behind so many bytes of them."""
        self.ends: list[tuple[Cursor, Sequence[int]]] = []
        """All others, by cursor; one may be there more than once."""

    def extend(self, other: Reach) -> None:
        """Add all of another."""
        self.regions += other.regions
        self.runs += other.runs
        self.ends += other.ends

    def tokens(self) -> list[int]:
        """The tokens that regions do not tell."""
        found: list[int] = []
        for _, tokens in self.ends:
            found += tokens
        for _, _, tokens in self.runs:
            found += tokens
        return found

    def cursors(self) -> Iterator[tuple[Cursor, Sequence[int]]]:
        """Where those lead."""
        yield from self.ends
        for run, count, tokens in self.runs:
            yield run.cursor(count), tokens


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
        self._parts: dict[tuple[Branch, Cursor], Reach] = {}
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
        row = self._near_mask(position, reach, limit)
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
            position.forced = _forced(position.cursor)
            self._cells += len(position.forced) // _CELL_BYTES
        return position.forced

    # Walks.

    def _after(self, position: Position, token: bytes | None) -> Position | None:
        cursor = position.cursor
        if token is None:
            return None
        for byte in token:
            cursor = None if cursor is None else cursor.step(byte)
        return None if cursor is None else self.at(cursor)

    def _learn(self, position: Position, reach: Reach) -> None:
        listed = self._with_stops(position, reach.tokens())
        bases = []
        for region, branch in reach.regions:
            outline = self._sweeps.outline(region, branch)
            listed += outline.tokens
            if outline.bits is not None:
                bases.append(outline.bits)
        position.row = self.rows.add(listed, bases)
        self._filled.append(position)

    def _with_stops(self, position: Position, tokens: list[int]) -> list[int]:
        """Some tokens, and those that may end the text at a position."""
        if position.cursor is not None and position.cursor.complete:
            tokens += self.vocabulary.stop_ids
        return tokens

    def _near_mask(self, position: Position, reach: Reach, most: int) -> npt.NDArray[np.int32]:
        """The mask of the tokens behind which the end is at most so many tokens away."""
        listed: list[int] = []
        for cursor, tokens in reach.cursors():
            if self._is_near(self.at(cursor), most):
                listed += tokens
        row = row_of(self._with_stops(position, listed), self._words)
        for region, branch in reach.regions:
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
            region.cursor(end)
            for region, branch in reach.regions
            for end in self._sweeps.end_states(region, branch)
        ]
        ends += [cursor for cursor, _ in reach.cursors()]
        targets = dict.fromkeys(self.at(cursor) for cursor in ends)
        found = {target: self.distance(target) for target in targets}
        known = {target: far for target, far in found.items() if far is not None}
        return known if len(known) == len(found) else {}

    def _reached(self, position: Position) -> Reach:
        reach = Reach()
        if position.cursor is not None:
            for branch, cursor in self._add(self._sweeps.root, position.cursor, reach):
                reach.extend(self._part(branch, cursor))
        return reach

    def _part(self, branch: Branch, cursor: Cursor) -> Reach:
        """What a walk finds below a branch; kept, for many positions lead to the same one."""
        part = self._parts.get((branch, cursor))
        if part is None:
            part = self._parts[branch, cursor] = Reach()
            pending = [(branch, cursor)]
            while pending:
                pending += self._add(*pending.pop(), part)
            self._cells += 4 * (1 + len(part.ends)) + len(part.runs)
        return part

    def _add(self, branch: Branch, cursor: Cursor, reach: Reach) -> list[tuple[Branch, Cursor]]:
        """Add what is right below a branch; the branches below which there is more."""
        run = cursor.run()
        if run is not None:
            return _along(branch, run, reach)
        region = cursor.region() if branch.size > _WORTH_A_SWEEP else None
        if region is None:
            following = _below(branch, cursor)
        else:
            reach.regions.append((region, branch))
            following = _exits(self._sweeps.outline(region, branch), region)
            for byte in region.apart:
                child = branch.below.get(byte)
                target = None if child is None else cursor.step(byte)
                if child is not None and target is not None:
                    following.append((child, target))
        further = []
        for one in following:
            child, target = one
            if child.tokens:
                reach.ends.append((target, child.tokens))
            if not child.is_leaf:
                further.append(one)
        return further

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


def _forced(cursor: Cursor | None) -> bytes:
    """The text behind a cursor about which there is no choice."""
    text = bytearray()
    while cursor is not None and not cursor.complete:
        run = cursor.run()
        if run is not None:
            text += run.text
            cursor = run.cursor(len(run.text))
            continue
        choices = iter(cursor.first_bytes())
        only = next(choices, None)
        if only is None or next(choices, None) is not None:
            break
        text.append(only)
        cursor = cursor.step(only)
    return bytes(text)


def _along(branch: Branch, run: Run, reach: Reach) -> list[tuple[Branch, Cursor]]:
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


def _below(branch: Branch, cursor: Cursor) -> list[tuple[Branch, Cursor]]:
    """The branches one byte further that are legal from a cursor, with where they lead."""
    below, found = branch.below, []
    if len(below) > _FEW:
        for byte, target in cursor.moves(below):
            child = below.get(byte)
            if child is not None:
                found.append((child, target))
        return found
    for byte, child in below.items():
        following = cursor.step(byte)
        if following is not None:
            found.append((child, following))
    return found


def _exits(outline: Outline, region: Region) -> list[tuple[Branch, Cursor]]:
    """The branches by which tokens leave a region, with where they lead."""
    sources: dict[int, Cursor] = {}
    exits: dict[Cursor, list[Exit]] = {}
    for one in outline.exits:
        source = sources.get(one.state)
        if source is None:
            source = sources[one.state] = region.cursor(one.state)
        target = source.step(one.byte)
        if target is not None:
            exits.setdefault(target, []).append(one)
    return [(outline.behind(found), target) for target, found in exits.items()]


_NOTHING: dict[int, Any] = {}
"""What positions have in place of dictionaries until those are written; never written itself."""
_CELL_BYTES = 128  # about what an entry of a dictionary and its share of an object take
_WORTH_A_SWEEP = 8
_FEW = 8
_UNKNOWN = -2
