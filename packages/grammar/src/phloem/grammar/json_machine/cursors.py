"""The cursors between strings: in front of, within and behind values, names and blanks.

Each is a place in the grammar of JSON together with everything that the text so far can mean. What
is within a string is `text_cursors`'. Cursors are made and interned by `JsonMachine.cursor`, so
identity is equality; all of them are live.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING

from phloem.grammar.automaton import Region, TokenCost
from phloem.grammar.json_machine.layout import NEWLINE, SPACE, Layout, blanks, decided, missing
from phloem.grammar.json_machine.levels import Level
from phloem.grammar.json_machine.nodes import NumberMachine
from phloem.grammar.json_machine.spelling import QUOTE
from phloem.grammar.json_schema.shape import NodeId

if TYPE_CHECKING:
    from phloem.grammar.json_machine.machine import JsonMachine

Candidates = tuple[tuple[NodeId, Level], ...]
"""What a value may be, and the level in which the text goes on behind it; by ascending node."""

COMMA, COLON = ord(","), ord(":")
CLOSING = {"array": ord("]"), "object": ord("}"), "text": -1}


class JsonCursor(ABC):
    """What all cursors share. See `automaton.Cursor`."""

    __slots__ = ("__weakref__", "layout", "machine")

    def __init__(self, machine: JsonMachine, layout: Layout) -> None:
        self.machine = machine
        self.layout = layout

    @property
    def complete(self) -> bool:
        """Whether the text may end here."""
        return False

    @abstractmethod
    def step(self, byte: int) -> JsonCursor | None:
        """The cursor after one more byte, or None."""

    @abstractmethod
    def first_bytes(self) -> Iterable[int]:
        """The bytes that may come next, ascending."""

    def region(self) -> Region | None:
        """None: few bytes are legal."""
        return None

    def distance(self, cost: TokenCost) -> int:
        """An upper bound of the fewest tokens to a complete text."""
        return self.machine.distances(cost).of(self)


class Value(JsonCursor):
    """In front of a value."""

    __slots__ = ("candidates", "is_spaced")

    def __init__(
        self, machine: JsonMachine, layout: Layout, candidates: Candidates, is_spaced: bool
    ) -> None:
        super().__init__(machine, layout)
        self.candidates = candidates
        self.is_spaced = is_spaced
        """Whether a space may come first."""

    def step(self, byte: int) -> JsonCursor | None:
        """Enter a value."""
        machine = self.machine
        if byte == QUOTE:
            return machine.string(self.layout, self.candidates)
        if byte == 0x7B or byte == 0x5B:
            level = machine.opened(self.candidates, "object" if byte == 0x7B else "array")
            if level is None:
                return None
            return machine.cursor(Member, self.layout, level, not machine.is_compact, True)
        if byte == SPACE:
            if not self.is_spaced:
                return None
            return machine.cursor(Value, self.layout, self.candidates, False)
        return self._word(byte) or self._number(byte)

    def _word(self, byte: int) -> JsonCursor | None:
        nodes = self.machine.nodes
        found = [(node, level) for node, level in self.candidates if byte in nodes[node].words]
        if not found:
            return None
        level = self.machine.levels.union(level for _, level in found)
        word = nodes[found[0][0]].words[byte]
        return self.machine.cursor(Word, self.layout, word[1:], level)

    def _number(self, byte: int) -> JsonCursor | None:
        found: dict[tuple[NumberMachine, int], Level] = {}
        for node, level in self.candidates:
            number = self.machine.nodes[node].number
            state = -1 if number is None else number.dfa.step(0, byte)
            if number is not None and state >= 0:
                found[number, state] = level
        places = tuple((number, state, level) for (number, state), level in found.items())
        return self.machine.cursor(Number, self.layout, places) if places else None

    def first_bytes(self) -> Iterable[int]:
        """What any of the values begins with."""
        nodes = self.machine.nodes
        firsts = {byte for node, _ in self.candidates for byte in nodes[node].first_bytes}
        return sorted(firsts | {SPACE} if self.is_spaced else firsts)


class Word(JsonCursor):
    """Within `null`, `true` or `false`."""

    __slots__ = ("level", "rest")

    def __init__(self, machine: JsonMachine, layout: Layout, rest: bytes, level: Level) -> None:
        super().__init__(machine, layout)
        self.rest = rest
        self.level = level

    def step(self, byte: int) -> JsonCursor | None:
        """Go on in the word."""
        if byte != self.rest[0]:
            return None
        if len(self.rest) == 1:
            return self.machine.cursor(After, self.layout, self.level)
        return self.machine.cursor(Word, self.layout, self.rest[1:], self.level)

    def first_bytes(self) -> Iterable[int]:
        """The next of its letters."""
        return self.rest[:1]


class Number(JsonCursor):
    """Within a number, which ends where something else begins."""

    __slots__ = ("places",)

    def __init__(
        self,
        machine: JsonMachine,
        layout: Layout,
        places: tuple[tuple[NumberMachine, int, Level], ...],
    ) -> None:
        super().__init__(machine, layout)
        self.places = places

    def step(self, byte: int) -> JsonCursor | None:
        """One more character of the number, or what comes behind it."""
        moved = []
        for number, state, level in self.places:
            target = number.dfa.step(state, byte)
            if target >= 0:
                moved.append((number, target, level))
        if moved:
            return self.machine.cursor(Number, self.layout, tuple(moved))
        ended = self.ended
        return None if ended is None else ended.step(byte)

    @property
    def ended(self) -> After | None:
        """The cursor behind the number, if it may end here."""
        levels = [level for number, at, level in self.places if not number.paths.lengths[at]]
        if not levels:
            return None
        return self.machine.cursor(After, self.layout, self.machine.levels.union(levels))

    @property
    def complete(self) -> bool:
        """Whether the number is all of the text and may end."""
        ended = self.ended
        return ended is not None and ended.complete

    def first_bytes(self) -> Iterable[int]:
        """Of the number, and of what may come behind it."""
        firsts = {byte for number, at, _ in self.places for byte in number.dfa.first_bytes(at)}
        ended = self.ended
        return sorted(firsts if ended is None else firsts.union(ended.first_bytes()))


class After(JsonCursor):
    """Behind a value."""

    __slots__ = ("level",)

    def __init__(self, machine: JsonMachine, layout: Layout, level: Level) -> None:
        super().__init__(machine, layout)
        self.level = level

    def step(self, byte: int) -> JsonCursor | None:
        """A comma, or the end of the container, maybe with blanks before it."""
        machine, level = self.machine, self.level
        if byte == COMMA:
            growing = machine.levels.growing(level) if level.depth else None
            if growing is None:
                return None
            return machine.cursor(Member, self.layout, growing, not machine.is_compact, False)
        if byte == CLOSING[level.kind]:
            around = machine.levels.after(level)
            return None if around is None else machine.cursor(After, self.layout, around)
        if byte not in (SPACE, NEWLINE) or machine.is_compact or not self._can_close:
            return None
        if byte == SPACE:
            return machine.cursor(Close, self.layout, level)
        return machine.cursor(Indent, self.layout, level, True, 0, 0)

    @property
    def _can_close(self) -> bool:
        return self.machine.levels.after(self.level) is not None

    @property
    def complete(self) -> bool:
        """Whether the value is all of the text."""
        return not self.level.depth

    def first_bytes(self) -> Iterable[int]:
        """Of what may come between values or behind the last one."""
        if not self.level.depth:
            return b""
        firsts = []
        if self._can_close:
            firsts = [CLOSING[self.level.kind]]
            if not self.machine.is_compact:
                firsts += [SPACE, NEWLINE]
        if self.machine.levels.growing(self.level) is not None:
            firsts.append(COMMA)
        return sorted(firsts)


class Close(JsonCursor):
    """Behind the blanks at the end of a container."""

    __slots__ = ("level",)

    def __init__(self, machine: JsonMachine, layout: Layout, level: Level) -> None:
        super().__init__(machine, layout)
        self.level = level

    def step(self, byte: int) -> JsonCursor | None:
        """The closing bracket."""
        around = self.machine.levels.after(self.level)
        if byte != CLOSING[self.level.kind] or around is None:
            return None
        return self.machine.cursor(After, self.layout, around)

    def first_bytes(self) -> Iterable[int]:
        """The closing bracket."""
        return (CLOSING[self.level.kind],)


class Member(JsonCursor):
    """In front of an item or a property: behind the opening bracket, a comma, or blanks."""

    __slots__ = ("can_blank", "can_close", "level")

    def __init__(
        self, machine: JsonMachine, layout: Layout, level: Level, can_blank: bool, can_close: bool
    ) -> None:
        super().__init__(machine, layout)
        self.level = level
        self.can_blank = can_blank
        self.can_close = can_close
        """Whether this is right behind the opening bracket."""

    @property
    def growing(self) -> Level | None:
        """The part of the level that something may be added to."""
        return self.machine.levels.growing(self.level)

    def step(self, byte: int) -> JsonCursor | None:
        """Begin what comes next, or blanks, or close what is empty."""
        machine = self.machine
        if self.can_close and byte == CLOSING[self.level.kind]:
            around = machine.levels.after(self.level)
            return None if around is None else machine.cursor(After, self.layout, around)
        growing = self.growing
        if growing is None:
            return None
        if byte in (SPACE, NEWLINE):
            if not self.can_blank:
                return None
            if byte == SPACE:
                return machine.cursor(Member, self.layout, growing, False, False)
            return machine.cursor(Indent, self.layout, growing, False, 0, 0)
        if growing.kind == "array":
            return self.item(growing).step(byte)
        return machine.name(self.layout, growing) if byte == QUOTE else None

    def item(self, growing: Level) -> Value:
        """The same place as that in front of an item."""
        return self.machine.cursor(Value, self.layout, self.machine.items(growing), False)

    def first_bytes(self) -> Iterable[int]:
        """Of what comes next."""
        firsts: set[int] = set()
        if self.can_close and self.machine.levels.after(self.level) is not None:
            firsts.add(CLOSING[self.level.kind])
        growing = self.growing
        if growing is not None:
            if self.can_blank:
                firsts |= {SPACE, NEWLINE}
            is_array = growing.kind == "array"
            firsts.update(self.item(growing).first_bytes() if is_array else (QUOTE,))
        return sorted(firsts)


class Indent(JsonCursor):
    """Behind a newline, within the indentation of the next line."""

    __slots__ = ("blank", "count", "is_closing", "level")

    def __init__(
        self,
        machine: JsonMachine,
        layout: Layout,
        level: Level,
        is_closing: bool,
        blank: int,
        count: int,
    ) -> None:
        super().__init__(machine, layout)
        self.level = level
        self.is_closing = is_closing
        """Whether the container is closed on the next line."""
        self.blank = blank
        self.count = count

    @property
    def _depth(self) -> int:
        return self.level.depth - self.is_closing

    @property
    def missing(self) -> int:
        """How many more blanks make a whole indentation."""
        return missing(self.layout, self._depth, self.blank, self.count)

    @property
    def ended(self) -> JsonCursor:
        """The cursor behind the indentation, when nothing is missing."""
        layout = decided(self.layout, self._depth, self.blank, self.count)
        if self.is_closing:
            return self.machine.cursor(Close, layout, self.level)
        return self.machine.cursor(Member, layout, self.level, False, False)

    def step(self, byte: int) -> JsonCursor | None:
        """One more blank, or what comes behind them."""
        if byte in blanks(self.layout, self._depth, self.blank, self.count):
            return self.machine.cursor(
                Indent, self.layout, self.level, self.is_closing, byte, self.count + 1
            )
        return None if self.missing else self.ended.step(byte)

    def first_bytes(self) -> Iterable[int]:
        """Blanks, and what comes behind them."""
        more = blanks(self.layout, self._depth, self.blank, self.count)
        return more if self.missing else sorted((*more, *self.ended.first_bytes()))


class Colon(JsonCursor):
    """Behind a name."""

    __slots__ = ("candidates",)

    def __init__(self, machine: JsonMachine, layout: Layout, candidates: Candidates) -> None:
        super().__init__(machine, layout)
        self.candidates = candidates

    def step(self, byte: int) -> JsonCursor | None:
        """The colon."""
        if byte != COLON:
            return None
        return self.machine.cursor(Value, self.layout, self.candidates, not self.machine.is_compact)

    def first_bytes(self) -> Iterable[int]:
        """The colon."""
        return (COLON,)
