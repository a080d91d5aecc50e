"""The cursors between values: in front of names and items, within blanks, and behind values.

Each is a place in the grammar of JSON together with everything that the text so far can mean. What
is within a string is `text_cursors`', what is in front of or within another value
`value_cursors`'. Cursors are made and interned by `JsonMachine.cursor`, so identity is equality;
all of them are live.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, ClassVar

from phloem.grammar.automaton import Cursor, Part, Region, Run, Texts, TokenCost
from phloem.grammar.json_machine.layout import (
    MOST_SPACES,
    NEWLINE,
    SPACE,
    TAB,
    Layout,
    blanks,
    decided,
    missing,
)
from phloem.grammar.json_machine.levels import Level
from phloem.grammar.json_machine.spelling import QUOTE
from phloem.grammar.json_schema.shape import NodeId

if TYPE_CHECKING:
    from phloem.grammar.json_machine.machine import JsonMachine
    from phloem.grammar.json_machine.value_cursors import Value

Candidates = tuple[tuple[NodeId, Level], ...]
"""What a value may be, and the level in which the text goes on behind it; by ascending node."""

COMMA = ord(",")
CLOSING = {"array": ord("]"), "object": ord("}"), "text": -1}


class JsonCursor(ABC):
    """What all cursors share. See `automaton.Cursor`."""

    __slots__ = ("__weakref__", "layout", "machine")
    is_name: ClassVar[bool] = False
    """Whether this is within the name of a property."""

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

    @property
    def has_choice(self) -> bool:
        """Whether it is clear at once that several bytes may come next."""
        return False

    def moves(self, among: Collection[int]) -> Iterable[tuple[int, JsonCursor]]:
        """Those of some bytes that may, each with the cursor after it."""
        return self._stepped(self.first_bytes(), among)

    def _stepped(self, some: Iterable[int], among: Collection[int]) -> list[tuple[int, JsonCursor]]:
        """Those of some bytes that are among others and may come next, as `moves` does."""
        found = []
        for byte in some:
            target = self.step(byte) if byte in among else None
            if target is not None:
                found.append((byte, target))
        return found

    def run(self) -> Run | None:
        """None: there are choices, or it is not worth it."""
        return None

    def region(self) -> Region | None:
        """None: few bytes are legal."""
        return None

    def part(self) -> Part | None:
        """None: what is around it matters at once."""
        return None

    def distance(self, cost: TokenCost) -> int:
        """An upper bound of the fewest tokens to a complete text."""
        return self.machine.distances(cost).of(self)


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

    @property
    def has_choice(self) -> bool:
        """Whether the container may be closed, with blanks or without."""
        return bool(self.level.depth) and not self.machine.is_compact and self._can_close

    def moves(self, among: Collection[int]) -> Iterable[tuple[int, JsonCursor]]:
        """Those, each with the cursor after it."""
        machine, layout, level = self.machine, self.layout, self.level
        found: list[tuple[int, JsonCursor]] = []
        if not level.depth:
            return found
        around, growing = machine.levels.after(level), machine.levels.growing(level)
        if around is not None:
            found.append((CLOSING[level.kind], machine.cursor(After, layout, around)))
            if not machine.is_compact:
                found.append((SPACE, machine.cursor(Close, layout, level)))
                found.append((NEWLINE, machine.cursor(Indent, layout, level, True, 0, 0)))
        if growing is not None:
            member = machine.cursor(Member, layout, growing, not machine.is_compact, False)
            found.append((COMMA, member))
        return found

    def part(self) -> Part | None:
        """What ends the value and begins what comes next."""
        return AfterPart(self) if self.level.depth else None


class AfterPart:
    """A comma or the end of a container, with blanks before it. See `automaton.Part`."""

    __slots__ = ("_after", "_around", "_growing", "key")
    is_shared = True
    others = b""

    def __init__(self, after: After) -> None:
        levels, level = after.machine.levels, after.level
        self._after = after
        self._around, self._growing = levels.after(level), levels.growing(level)
        closes = self._around is not None and level.kind
        lines = (after.layout, level.depth) if closes and not after.machine.is_compact else None
        self.key = (AfterPart, closes, self._growing is not None, lines)

    def holds(self, texts: Texts) -> bool:
        """Of all texts."""
        return True

    def cursor(self) -> After:
        """The position itself: what is around it is not come to."""
        return self._after

    def mark(self, cursor: Cursor) -> object | None:
        """Of what is behind the comma; and behind the bracket, with how lines are indented then."""
        if isinstance(cursor, Member):
            return Member
        return cursor.layout if isinstance(cursor, After) and cursor is not self._after else None

    def outer(self, mark: object) -> JsonCursor:
        """Within that."""
        after = self._after
        machine, layout = after.machine, after.layout
        if isinstance(mark, Layout):
            assert self._around is not None, "a bracket comes where the container may end"
            return machine.cursor(After, mark, self._around)
        assert self._growing is not None, "a comma comes where there may be more"
        return machine.cursor(Member, layout, self._growing, not machine.is_compact, False)


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
        return self.machine.value(self.layout, self.machine.items(growing))

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

    @property
    def has_choice(self) -> bool:
        """Whether blanks may come."""
        return self.can_blank and self.growing is not None

    def moves(self, among: Collection[int]) -> Iterable[tuple[int, JsonCursor]]:
        """Those, all that an item may begin with together."""
        growing, others = self.growing, list[int]()
        if self.can_close:
            others.append(CLOSING[self.level.kind])
        if self.can_blank:
            others += [SPACE, NEWLINE]
        if growing is None or growing.kind == "object":
            return self._stepped([*others, QUOTE], among)
        return [*self._stepped(others, among), *self.item(growing).moves(among)]

    def part(self) -> Part | None:
        """The item that comes, or the quote of a name, if one does."""
        growing = self.growing
        if growing is None:
            return None
        closing = (CLOSING[growing.kind],) if self.can_close else ()
        if growing.kind == "object":
            key = (BlanksPart, self.layout, growing.depth if self.can_blank else -1)
            start = self.machine.cursor(Member, self.layout, growing, self.can_blank, False)
            return BlanksPart(start, growing, key, bytes(closing))
        blank = (SPACE, NEWLINE) if self.can_blank else ()
        return self.item(growing).part_of(self, bytes((*closing, *blank)))


class BlanksPart:
    """What may come in front of a name. See `automaton.Part`."""

    __slots__ = ("_growing", "_start", "key", "others")
    is_shared = True

    def __init__(
        self, start: JsonCursor, growing: Level, key: tuple[object, ...], others: bytes = b""
    ) -> None:
        self._start = start
        self._growing = growing
        self.key = key
        self.others = others

    def holds(self, texts: Texts) -> bool:
        """Of all texts."""
        return True

    def cursor(self) -> JsonCursor:
        """The position itself, if it cannot close: what is around it is not come to."""
        return self._start

    def mark(self, cursor: Cursor) -> object | None:
        """Of the name: how lines are indented by then."""
        assert isinstance(cursor, JsonCursor), "what follows from a cursor of JSON is another"
        return cursor.layout if cursor.is_name else None

    def outer(self, mark: object) -> JsonCursor:
        """Within the name."""
        assert isinstance(mark, Layout), "there are no other marks"
        return self._start.machine.name(mark, self._growing)


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

    @property
    def has_choice(self) -> bool:
        """Whether more blanks may come, but need not."""
        more = blanks(self.layout, self._depth, self.blank, self.count)
        return len(more) > 1 or (bool(more) and not self.missing)

    def moves(self, among: Collection[int]) -> Iterable[tuple[int, JsonCursor]]:
        """Those, what comes behind the blanks together."""
        found = self._stepped(blanks(self.layout, self._depth, self.blank, self.count), among)
        return found if self.missing else [*found, *self.ended.moves(among)]

    def run(self) -> Run | None:
        """The rest of the indentation, where it is known how far that goes."""
        missing, count = self.missing, self.count
        more = blanks(self.layout, self._depth, self.blank, count) if missing else ()
        if len(more) != 1:
            return None
        blank = more[0]
        return Run(bytes(more) * missing, lambda further: self.at(blank, count + further))

    def region(self) -> Region | None:
        """The blanks."""
        return self.machine.regions.of_indent(self)

    def at(self, blank: int, count: int) -> Indent:
        """The cursor behind another number of blanks."""
        return self.machine.cursor(Indent, self.layout, self.level, self.is_closing, blank, count)

    @property
    def room(self) -> tuple[int, int]:
        """The most tabs, and the most spaces, that may stand here."""
        layout, depth = self.layout, self._depth
        if not layout.blank:
            return depth, MOST_SPACES * depth
        wide = depth * layout.width
        return (wide, 0) if layout.blank == TAB else (0, wide)

    def last(self) -> Iterable[int]:
        """What may come behind the blanks."""
        if self.is_closing:
            return (CLOSING[self.level.kind],)
        return self.machine.cursor(Member, self.layout, self.level, False, False).first_bytes()
