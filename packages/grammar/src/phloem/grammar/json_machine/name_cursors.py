"""The cursor within names of properties. What all strings share is `text_cursors`'."""

from __future__ import annotations

from phloem.grammar.automaton import Cursor, Part, Region, Run, Texts
from phloem.grammar.json_machine.cursors import JsonCursor
from phloem.grammar.json_machine.levels import Level
from phloem.grammar.json_machine.name_spelling import spells, spells_one
from phloem.grammar.json_machine.name_tree import NameTree
from phloem.grammar.json_machine.objects import UNKNOWN, ObjectState
from phloem.grammar.json_machine.regions import WIDE
from phloem.grammar.json_machine.spelling import QUOTE, forced_part
from phloem.grammar.json_machine.text_cursors import TextCursor
from phloem.grammar.json_machine.value_cursors import COLON, Colon, Value
from phloem.grammar.json_schema.shape import NodeId

NamePlace = tuple[ObjectState, Level, NameTree | None, tuple[int, ...], bytes]
"""The state before the name, the level around the object, the place among the declared names,
the states of the classes that `ObjectState.classes` tells (-1 is dead), and the name so far, which
is left empty where no class is alive."""

_BEHIND_NAME = bytes((QUOTE, COLON))


class NameCursor(TextCursor):
    """Within the name of a property."""

    __slots__ = ()
    is_name = True
    places: tuple[NamePlace, ...]

    def fed(self, places: tuple[NamePlace, ...], byte: int) -> tuple[NamePlace, ...]:
        """The places after one more byte of content."""
        moved = []
        for state, around, tree, states, name in places:
            if tree is not None:
                tree = tree.children.get(byte)
                if tree is not None and not tree.below & state.choices:
                    tree = None
            longer = name + bytes((byte,))
            states = tuple(
                [
                    self._class_step(state, number, at, byte, longer)
                    for number, at in zip(state.classes, states, strict=True)
                ]
            )
            is_open = max(states, default=-1) >= 0
            if tree is not None or is_open:
                moved.append((state, around, tree, states, longer if is_open else b""))
        return tuple(moved)

    def _class_step(self, state: ObjectState, number: int, at: int, byte: int, name: bytes) -> int:
        machine = state.machine
        target = -1 if at < 0 else machine.others[number][0].step(at, byte)
        if target >= 0 and not machine.has_names(number, target, name, state.names):
            return -1
        return target

    def content_bytes(self, places: tuple[NamePlace, ...]) -> set[int]:
        """The bytes of content that may come next."""
        found: set[int] = set()
        for place in places:
            state, _, tree, states, _name = place
            if tree is not None:
                choices = state.choices
                found.update(byte for byte, below in tree.children.items() if below.below & choices)
            for number, at in zip(state.classes, states, strict=True):
                if at < 0:
                    continue
                machine = state.machine
                firsts = machine.others[number][0].first_bytes(at)
                if state.names and not machine.paths[number].unbounded:
                    found.update(byte for byte in firsts if self.fed((place,), byte))
                else:
                    found.update(firsts)
        return found

    def closed(self) -> JsonCursor | None:
        """Behind the name."""
        found = [
            (node, self.machine.within("object", after, around))
            for node, after, around in self.endings()
        ]
        if not found:
            return None
        return self.machine.cursor(Colon, self.layout, self.machine.candidates(found))

    def endings(self) -> list[tuple[NodeId, ObjectState, Level]]:
        """What the name can be if it ends here: the node of the value, and what is behind it."""
        found = []
        for state, around, tree, states, name in self.places:
            machine = state.machine
            if tree is not None and tree.ends >= 0 and state.choices >> tree.ends & 1:
                number = tree.ends
                found.append((machine.nodes[number], machine.after_declared(state, number), around))
            if name in state.names or UNKNOWN in state.names:
                continue
            for number, at in zip(state.classes, states, strict=True):
                if at >= 0 and machine.others[number][0].accepting[at]:
                    after = machine.after_other(state, number, name)
                    found.append((machine.others[number][1], after, around))
        return found

    @property
    def is_finite(self) -> bool:
        """Whether finitely many names are left."""
        return not any(
            at >= 0 and state.machine.paths[number].heights[at] < 0
            for state, _, _, states, _ in self.places
            for number, at in zip(state.classes, states, strict=True)
        )

    def run(self) -> Run | None:
        """The rest of the only name that can come, and the colon."""
        rest = None if self.pending else self._only_rest()
        if rest is None:
            return None
        plain = forced_part(rest)
        is_whole = len(plain) == len(rest)
        text = plain + _BEHIND_NAME if is_whole else plain

        def behind(count: int) -> JsonCursor:
            if count == len(text) and is_whole:
                return self._value_behind()
            places = [
                (state, around, tree and tree.below_path(plain[:count]), states, b"")
                for state, around, tree, states, _ in self.places
            ]
            cursor: JsonCursor = self.at(tuple(places))
            for byte in _BEHIND_NAME[: max(count - len(plain), 0)]:
                cursor = cursor.step(byte)  # type: ignore[assignment]
            return cursor

        return Run(text, behind) if text else None

    def _value_behind(self) -> Value:
        """In front of the value of the only name that can come."""
        machine, found = self.machine, []
        for state, around, tree, _, _ in self.places:
            assert tree is not None, "the only name is a declared one"
            number = (tree.below & state.choices).bit_length() - 1
            after = state.machine.after_declared(state, number)
            level = machine.within("object", after, around)
            found.append((state.machine.nodes[number], level))
        is_spaced = not machine.is_compact
        return machine.cursor(Value, self.layout, machine.candidates(found), is_spaced)

    def part(self) -> Part | None:
        """The rest of the name, as that of one that neither is declared nor was used."""
        if len(self.places) != 1:
            return None
        state, _, tree, states, name = self.places[0]
        if self.pending and not name.startswith(UNKNOWN):
            return None
        alive = [(number, at) for number, at in zip(state.classes, states, strict=True) if at >= 0]
        if len(alive) != 1 or state.machine.needs_names:
            return None
        machine, (number, at) = state.machine, alive[0]
        if not machine.paths[number].unbounded or not (tree is None or machine.goes_along(number)):
            return None
        firsts = machine.others[number][0].first_bytes(at)
        if not self.pending and len(firsts) <= WIDE and self.region() is None:
            return None  # a walk tells more of what comes behind the name
        return FreeNamePart(self, self.places[0], number, at)

    def _only_rest(self) -> bytes | None:
        """The rest of the name, if only one is possible."""
        found: bytes | None = None
        for state, _, tree, states, _ in self.places:
            below = 0 if tree is None else tree.below & state.choices
            if tree is None or below & (below - 1) or any(at >= 0 for at in states):
                return None
            rest = state.machine.names[below.bit_length() - 1][tree.depth :]
            if found is not None and rest != found:
                return None
            found = rest
        return found

    def _find_region(self) -> Region | None:
        return self.machine.regions.of_name(self)


class FreeNamePart:
    """The rest of a name of one class, as if there were no other names. See `automaton.Part`."""

    __slots__ = ("_cursor", "_number", "_place", "is_shared", "key")
    others = b""

    def __init__(self, cursor: NameCursor, place: NamePlace, number: int, at: int) -> None:
        state = place[0]
        machine = state.machine
        self._cursor, self._place, self._number = cursor, place, number
        self.is_shared = not machine.names
        names = machine.others[number][0] if self.is_shared else (machine, number)
        can_end = UNKNOWN not in state.names
        self.key = (NameCursor, cursor.pending, names, at, can_end)

    def holds(self, texts: Texts) -> bool:
        """Of texts that do not come to the end of another name: which has gone before, or has a
        value of its own."""
        state, _, tree, _, name = self._place
        if tree is not None and spells_one(texts, tree, state.choices):
            return False
        return not any(
            spells(texts, used[len(name) :]) for used in state.names if used.startswith(name)
        )

    def cursor(self) -> TextCursor:
        """The position in a name that is not known: what is around it is not come to."""
        state, around, _, states, _ = self._place
        return self._cursor.at(((state, around, None, states, UNKNOWN),), self._cursor.pending)

    def mark(self, cursor: Cursor) -> object | None:
        """Of the end of the name."""
        return Colon if isinstance(cursor, Colon) else None

    def outer(self, mark: object) -> Colon:
        """Behind the name; what it was is not told, as behind regions."""
        machine, (state, around, *_) = self._cursor.machine, self._place
        after = state.machine.after_other(state, self._number, UNKNOWN)
        node = state.machine.others[self._number][1]
        level = machine.within("object", after, around)
        return machine.cursor(Colon, self._cursor.layout, ((node, level),))
