"""The cursors in front of and within values that are no containers or strings: see `cursors`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from phloem.grammar.automaton import Part, Run
from phloem.grammar.json_machine.cursors import After, Candidates, JsonCursor, Member
from phloem.grammar.json_machine.layout import SPACE, Layout
from phloem.grammar.json_machine.levels import Level
from phloem.grammar.json_machine.nodes import NumberMachine
from phloem.grammar.json_machine.spelling import QUOTE
from phloem.grammar.json_machine.value_parts import ValuePart, common_level

if TYPE_CHECKING:
    from phloem.grammar.json_machine.machine import JsonMachine

NumberPlace = tuple[NumberMachine, int, Level]
"""The texts of a number, the state among them, and the level behind it."""

COLON = ord(":")


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

    def part(self) -> Part | None:
        """The value, with the colon."""
        return _part(self, Colon, self.candidates)


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
        places = []
        for node, level in self.candidates:
            number = self.machine.nodes[node].number
            state = -1 if number is None else number.dfa.step(0, byte)
            if number is not None and state >= 0:
                places.append((number, state, level))
        return self.machine.cursor(Number, self.layout, tuple(places)) if places else None

    def first_bytes(self) -> Iterable[int]:
        """What any of the values begins with."""
        nodes = self.machine.nodes
        firsts = {byte for node, _ in self.candidates for byte in nodes[node].first_bytes}
        return sorted(firsts | {SPACE} if self.is_spaced else firsts)

    @property
    def has_choice(self) -> bool:
        """Whether a space may come, or any of several."""
        nodes = self.machine.nodes
        return self.is_spaced or len(nodes[self.candidates[0][0]].first_bytes) > 1

    def moves(self, among: Collection[int]) -> Iterable[tuple[int, JsonCursor]]:
        """Those, the digits together."""
        nodes, places, others = self.machine.nodes, [], set[int]()
        for node, level in self.candidates:
            number = nodes[node].number
            if number is not None:
                places.append((number, 0, level))
            others.update(nodes[node].other_first_bytes)
        if self.is_spaced:
            others.add(SPACE)
        found = self._stepped(others, among)
        if places:
            found += Number.digits(self.machine, self.layout, places)
        return found

    def part(self) -> Part | None:
        """The value."""
        return _part(self, Value, self.candidates, b"", self.is_spaced)

    def part_of(self, origin: JsonCursor, others: bytes) -> Part | None:
        """The value, of a position where also other bytes may come."""
        return _part(origin, Value, self.candidates, others, False)


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

    def run(self) -> Run:
        """The rest of it."""
        return Run(self.rest, self._behind)

    def _behind(self, count: int) -> JsonCursor:
        rest = self.rest[count:]
        if not rest:
            return self.machine.cursor(After, self.layout, self.level)
        return self.machine.cursor(Word, self.layout, rest, self.level)


class Number(JsonCursor):
    """Within a number, which ends where something else begins."""

    __slots__ = ("places",)

    def __init__(
        self,
        machine: JsonMachine,
        layout: Layout,
        places: tuple[NumberPlace, ...],
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

    @classmethod
    def digits(
        cls, machine: JsonMachine, layout: Layout, places: Sequence[NumberPlace]
    ) -> list[tuple[int, JsonCursor]]:
        """The characters by which a number goes on, each with the cursor after it."""
        found: list[tuple[int, JsonCursor]] = []
        if len(places) == 1:
            number, at, level = places[0]
            for target, some in number.moves(at):
                after = machine.cursor(cls, layout, ((number, target, level),))
                found += [(byte, after) for byte in some]
            return found
        firsts = {byte for number, at, _ in places for byte in number.dfa.first_bytes(at)}
        known: dict[tuple[int, ...], JsonCursor] = {}
        for byte in firsts:
            targets = tuple([number.dfa.step(at, byte) for number, at, _ in places])
            cursor = known.get(targets)
            if cursor is None:
                moved = tuple(
                    (number, target, level)
                    for (number, _, level), target in zip(places, targets, strict=True)
                    if target >= 0
                )
                cursor = known[targets] = machine.cursor(cls, layout, moved)
            found.append((byte, cursor))
        return found

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

    @property
    def has_choice(self) -> bool:
        """Whether several digits may come."""
        number, at, _ = self.places[0]
        return len(number.dfa.first_bytes(at)) > 1

    def moves(self, among: Collection[int]) -> Iterable[tuple[int, JsonCursor]]:
        """Those, the digits together."""
        found = self.digits(self.machine, self.layout, self.places)
        ended = self.ended
        # What may come behind a number is no part of one.
        return found if ended is None else [*found, *ended.moves(among)]

    def part(self) -> Part | None:
        """The rest of the number."""
        level = common_level([level for _, _, level in self.places])
        if level is None:
            return None
        base = self.machine.levels.text
        alone = tuple([(number, at, base) for number, at, _ in self.places])
        key = tuple([(number, at) for number, at, _ in self.places])
        return ValuePart(self, level, Number, (alone,), key)


def _part(
    origin: JsonCursor,
    kind: type[JsonCursor],
    candidates: Candidates,
    others: bytes = b"",
    *options: bool,
) -> Part | None:
    """What may be a value; `kind` is what takes it, and options."""
    level = common_level([level for _, level in candidates])
    if level is None:
        return None
    machine = origin.machine
    contents = tuple([machine.nodes[node].content for node, _ in candidates])
    key = (machine.is_compact, options, contents)
    base = machine.levels.text
    alone = tuple([(node, base) for node, _ in candidates])
    return ValuePart(origin, level, kind, (alone, *options), key, others, candidates)
