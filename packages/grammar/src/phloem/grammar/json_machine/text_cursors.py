r"""The cursors within strings: escapes, and the content that they and plain bytes stand for.

Content is UTF-8; a cursor holds all places that the content so far can be at, and the bytes of an
unfinished escape. Where infinitely many contents can follow, every escape of JSON is legal; where
finitely many can (declared names, an enum, a bounded length), only those that a character needs,
so that such text is forced as soon as there is one. Lone surrogates are never legal.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterable, Set
from typing import TYPE_CHECKING, Any, Literal

from phloem.grammar.automaton import Part, Region, Run
from phloem.grammar.json_machine.cursors import After, JsonCursor
from phloem.grammar.json_machine.layout import Layout
from phloem.grammar.json_machine.levels import Level
from phloem.grammar.json_machine.nodes import StringMachine
from phloem.grammar.json_machine.spelling import (
    BACKSLASH,
    HEX_DIGITS,
    NEEDED_ESCAPES,
    PLAIN,
    QUOTE,
    SHORT_ESCAPES,
    UNSPELLED,
    code_points,
)
from phloem.grammar.json_machine.value_parts import ValuePart, common_level

if TYPE_CHECKING:
    from phloem.grammar.json_machine.machine import JsonMachine

StringPlace = tuple[StringMachine, int, int, Level]
"""A shape, its state (two numbers), and the level behind the string."""
_PLAIN = frozenset(PLAIN)
_BEGINS = frozenset(range(0x80)) | frozenset(range(0xC2, 0xF5))
_UNICODE = frozenset(byte for byte in _BEGINS if any(a <= byte <= z for a, z in UNSPELLED))
_TIDY = _UNICODE | frozenset(NEEDED_ESCAPES)
_IN_ESCAPE = HEX_DIGITS + b"\\u"
_AFTER_BACKSLASH = bytes(sorted((*SHORT_ESCAPES, ord("u"))))


class TextCursor(JsonCursor):
    """Within a string."""

    __slots__ = ("_region", "pending", "places")

    def __init__(
        self, machine: JsonMachine, layout: Layout, places: tuple[Any, ...], pending: bytes
    ) -> None:
        super().__init__(machine, layout)
        self.places = places
        self.pending = pending
        """The bytes of an escape that is not finished."""
        self._region: Region | Literal[False] | None = False
        """False: not asked yet."""

    @abstractmethod
    def fed(self, places: tuple[Any, ...], byte: int) -> tuple[Any, ...]:
        """The places after one more byte of content; none if it is not legal."""

    @abstractmethod
    def content_bytes(self, places: tuple[Any, ...]) -> Set[int]:
        """The bytes of content that `fed` takes."""

    @abstractmethod
    def closed(self) -> JsonCursor | None:
        """The cursor behind the closing quote."""

    @property
    @abstractmethod
    def is_finite(self) -> bool:
        """Whether finitely many contents can follow."""

    def step(self, byte: int) -> JsonCursor | None:
        """One more byte of the JSON text."""
        if self.pending:
            return self._escape(byte)
        if byte == QUOTE:
            return self.closed()
        if byte == BACKSLASH:
            return self.at(self.places, b"\\") if self._can_escape(_TIDY) else None
        return self._moved(byte) if byte in _PLAIN else None

    def first_bytes(self) -> Iterable[int]:
        """Of content and escapes, and the closing quote."""
        if self.pending:
            candidates = _AFTER_BACKSLASH if self.pending == b"\\" else _IN_ESCAPE
            return sorted(byte for byte in candidates if self._escape(byte) is not None)
        firsts = set(self.content_bytes(self.places) & _PLAIN)
        if self.closed() is not None:
            firsts.add(QUOTE)
        if self._can_escape(_TIDY):
            firsts.add(BACKSLASH)
        return sorted(firsts)

    @property
    def has_choice(self) -> bool:
        """Whether several plain bytes may come."""
        return not self.pending and self._has_wide_content

    @property
    def _has_wide_content(self) -> bool:
        """Whether it is clear at once that several plain bytes may come as content."""
        return False

    def region(self) -> Region | None:
        """The plain bytes of the content."""
        if self._region is False:
            self._region = None if self.pending else self._find_region()
        return self._region

    @abstractmethod
    def _find_region(self) -> Region | None: ...

    def moves(self, among: Collection[int]) -> Iterable[tuple[int, JsonCursor]]:
        """Those of some bytes that may, each with the cursor after it."""
        if self.pending:
            return self._stepped(_AFTER_BACKSLASH if len(self.pending) == 1 else _IN_ESCAPE, among)
        content = self.content_bytes(self.places)
        few = {*content, QUOTE, BACKSLASH} if len(content) < len(among) else among
        return self._stepped(few, among)

    def at(self, places: tuple[Any, ...], pending: bytes = b"") -> TextCursor:
        """The cursor at other places of the same string."""
        return self.machine.cursor(type(self), self.layout, places, pending)

    def _moved(self, *content: int) -> TextCursor | None:
        places = self.places
        for byte in content:
            places = self.fed(places, byte)
            if not places:
                return None
        return self.at(places)

    # Escapes.

    def _can_escape(self, tidy: frozenset[int]) -> bool:
        """Whether some character can come next as an escape, `tidy` being those that need it."""
        begins = tidy if self.is_finite else _BEGINS
        return not begins.isdisjoint(self.content_bytes(self.places))

    def _escape(self, byte: int) -> JsonCursor | None:
        pending = self.pending + bytes((byte,))
        if len(pending) == 2:
            if byte == 0x75:
                return self.at(self.places, pending) if self._can_escape(_UNICODE) else None
            meant = SHORT_ESCAPES.get(byte)
            if meant is None or (self.is_finite and meant not in NEEDED_ESCAPES):
                return None
            return self._moved(meant)
        expected = {7: b"\\", 8: b"u"}.get(len(pending), HEX_DIGITS)
        if byte not in expected:
            return None
        point = self.first_point(pending)
        if point is None:
            return None
        if len(pending) == 12 or (len(pending) == 6 and point < 0x10000):
            return self._moved(*chr(point).encode())
        return self.at(self.places, pending)

    def first_point(self, pending: bytes) -> int | None:
        """The first legal character that an unfinished `\\uXXXX` can become; None: none."""
        ranges = code_points(pending)
        if self.is_finite:
            ranges = [
                (max(low, first), min(high, last))
                for low, high in ranges
                for first, last in UNSPELLED
            ]
        for low, high in ranges:
            for first, last in _LENGTHS:
                if max(low, first) <= min(high, last):
                    bounds = (chr(max(low, first)).encode(), chr(min(high, last)).encode())
                    found = self._first_within(self.places, *bounds)
                    if found is not None:
                        return ord(found.decode())
        return None

    def _first_within(self, places: tuple[Any, ...], low: bytes, high: bytes) -> bytes | None:
        """The first sequence of as many bytes, from one to another, that `places` can take."""
        content = self.content_bytes(places)
        for byte in range(low[0], high[0] + 1):
            if byte not in content:
                continue
            if len(low) == 1:
                return bytes((byte,))
            rest = self._first_within(
                self.fed(places, byte),
                low[1:] if byte == low[0] else b"\x80" * (len(low) - 1),
                high[1:] if byte == high[0] else b"\xbf" * (len(high) - 1),
            )
            if rest is not None:
                return bytes((byte,)) + rest
        return None


_LENGTHS = [(0, 0x7F), (0x80, 0x7FF), (0x800, 0xFFFF), (0x10000, 0x10FFFF)]


class StringCursor(TextCursor):
    """Within a string that is a value."""

    __slots__ = ()
    places: tuple[StringPlace, ...]

    def fed(self, places: tuple[StringPlace, ...], byte: int) -> tuple[StringPlace, ...]:
        """The places after one more byte of content."""
        moved = []
        for string, state, count, level in places:
            target = string.step(state, count, byte)
            if target is not None:
                moved.append((string, *target, level))
        return tuple(moved)

    def content_bytes(self, places: tuple[StringPlace, ...]) -> Set[int]:
        """The bytes of content that may come next."""
        if len(places) == 1:
            string, state, count, _ = places[0]
            return string.first_bytes(state, count)
        return {
            byte for string, state, count, _ in places for byte in string.first_bytes(state, count)
        }

    @property
    def _has_wide_content(self) -> bool:
        """Whether any of the places has."""
        for string, state, count, _ in self.places:
            plain = (byte for byte in string.first_bytes(state, count) if byte in _PLAIN)
            if next(plain, None) is not None and next(plain, None) is not None:
                return True
        return False

    def closed(self) -> JsonCursor | None:
        """Behind the string."""
        levels = [
            level for string, state, count, level in self.places if string.accepts(state, count)
        ]
        if not levels:
            return None
        return self.machine.cursor(After, self.layout, self.machine.levels.union(levels))

    @property
    def is_finite(self) -> bool:
        """Whether finitely many contents can follow."""
        return all(string.is_finite(state) for string, state, _, _ in self.places)

    def run(self) -> Run | None:
        """What is left of a content that there is no other way to go on with."""
        if self.pending or len(self.places) != 1:
            return None
        string, state, _, level = self.places[0]
        text = string.forced(state)

        def behind(count: int) -> JsonCursor:
            if text[count - 1 : count] == b'"':
                return self.machine.cursor(After, self.layout, level)
            return self.at(((string, string.dfa.run(text[:count], state), 0, level),))

        return Run(text, behind) if text else None

    def part(self) -> Part | None:
        """The rest of the string, unless it is forced."""
        string, state, _, level = self.places[0]
        if len(self.places) == 1:
            if string.forced(state):
                return None
        elif common_level([level for _, _, _, level in self.places]) is None:
            return None
        base = self.machine.levels.text
        alone = tuple([(string, state, count, base) for string, state, count, _ in self.places])
        alike = [string.alike(state, count) for string, state, count, _ in self.places]
        key = (self.pending, *alike)
        return ValuePart(self, level, StringCursor, (alone, self.pending), key)

    def _find_region(self) -> Region | None:
        return self.machine.regions.of_string(self)
