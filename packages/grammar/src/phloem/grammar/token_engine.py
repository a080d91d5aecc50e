"""The engine that turns any byte automaton into token masks over a vocabulary.

It owns the caches: positions by cursor, the position after a token, and one mask row per distinct
set of tokens. A new position costs a walk of the token trie (or a sweep, where the cursor tells a
region); a known one costs a lookup and the copy of a row. Which text was said is the matcher's.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from phloem.grammar.automaton import UNSPELLABLE, Automaton, Cursor
from phloem.grammar.mask_rows import MaskRows, row_of
from phloem.grammar.sweeps import Inside, Sweeps
from phloem.grammar.token_walks import MaskWalk, Reach, Walk
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


class TokenEngine:
    """Positions of one automaton over one vocabulary. Used by one thread."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        automaton: Automaton,
        sweeps: Sweeps | None = None,
        cache_bytes: int = 16 << 20,
    ) -> None:
        self.vocabulary = vocabulary
        self.ended = Position(None)
        self.rows = MaskRows(vocabulary.words, cache_bytes)
        self._words = vocabulary.words
        self._automaton = automaton
        self._start = automaton.start
        self._sweeps = sweeps or Sweeps(vocabulary)
        self._positions: dict[Cursor, Position] = {}
        self._walk = Walk(self._sweeps)
        self._mask_walk = MaskWalk(self._sweeps)
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
            cursor = position.cursor
            self._learn(position, Reach() if cursor is None else self._mask_walk.reach(cursor))
        return position.row

    def near_end(self, position: Position, tokens_left: int) -> npt.NDArray[np.int32] | None:
        """The mask of tokens after which the text can still end in time; None if all can.

        Where no token is in time, those on a shortest way. None as well where the automaton
        cannot tell distances.
        """
        if self.has_enough(position, tokens_left):
            return None
        known = position.steered.get(tokens_left)
        if known is not None:
            return known
        self._make_room()
        reach = Reach() if position.cursor is None else self._walk.reach(position.cursor)
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

    def has_enough(self, position: Position, tokens_left: int) -> bool:
        """Whether it is known that the text can still end in time after any legal token."""
        return 0 <= position.worst < tokens_left or self.farthest < tokens_left

    @cached_property
    def farthest(self) -> int:
        """An upper bound of all distances; `UNSPELLABLE` where none is known."""
        vocabulary = self.vocabulary
        told = self._automaton.farthest(vocabulary.cost, vocabulary.missing_bytes)
        return UNSPELLABLE if told is None else told

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
        if token is None or cursor is None:
            return None
        run = cursor.run()
        if run is not None:
            count = min(len(run.text), len(token))
            if not token.startswith(run.text[:count]):
                return None
            cursor, token = run.cursor(count), token[count:]
        for byte in token:
            following = cursor.step(byte)
            if following is None:
                return None
            cursor = following
        return self.at(cursor)

    def _learn(self, position: Position, reach: Reach) -> None:
        listed, rows = self._sweeps.told(reach.tokens(), reach.regions)
        bases = [*reach.bases, *rows]
        listed = self._with_stops(position, listed)
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
        for inside in reach.regions:
            row |= self._near_inside(inside, most)
        return row

    def _near_inside(self, inside: Inside, most: int) -> npt.NDArray[np.int32]:
        region, sweep = inside.region, self._sweeps.whole(inside)
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
            inside.region.cursor(end)
            for inside in reach.regions
            for end in self._sweeps.end_states(inside)
        ]
        ends += [cursor for cursor, _ in reach.cursors()]
        targets = dict.fromkeys(self.at(cursor) for cursor in ends)
        found = {target: self.distance(target) for target in targets}
        known = {target: far for target, far in found.items() if far is not None}
        return known if len(known) == len(found) else {}

    def _make_room(self) -> None:
        if self.rows.is_full or self._kept_cells > self._most_cells:
            self._start_over()

    @property
    def _kept_cells(self) -> int:
        return self._cells + self._walk.cells + self._mask_walk.cells

    def _start_over(self) -> None:
        """Forget all positions. Those that matchers hold are still right, and learn anew."""
        for position in (*self._positions.values(), *self._filled):
            position.forget()
        self._positions.clear()
        self._filled.clear()
        self._walk.clear()
        self._mask_walk.clear()
        self.rows.clear()
        self._cells = 0


def is_complete(position: Position) -> bool:
    """Whether the text may end at a position, or has."""
    return position.cursor is None or position.cursor.complete


def _forced(cursor: Cursor | None) -> bytes:
    """The text behind a cursor about which there is no choice."""
    text = bytearray()
    while cursor is not None and not (cursor.has_choice or cursor.complete):
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


_NOTHING: dict[int, Any] = {}
"""What positions have in place of dictionaries until those are written; never written itself."""
_CELL_BYTES = 128  # about what an entry of a dictionary and its share of an object take
_UNKNOWN = -2
