"""Regions: the plain bytes of strings and names as DFAs, so that wide masks are swept at once.

A region's DFA has no quotes, backslashes or control characters; those leave it. Several contents
that are possible side by side become one joint DFA. For names, the places along declared and used
names are states of their own in front of it; behind them, what the name was is not told, which
costs masks the tokens that hold the end of one undeclared name and all of another.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from phloem.grammar.automaton import Region
from phloem.grammar.dfa import Budget, Dfa
from phloem.grammar.dfa.literals import of_lengths
from phloem.grammar.dfa.serial import packed
from phloem.grammar.dfa.table import Bytes, Ints, Table
from phloem.grammar.json_machine.objects import UNKNOWN
from phloem.grammar.json_machine.spelling import BACKSLASH, PLAIN, QUOTE

if TYPE_CHECKING:
    from phloem.grammar.json_machine.machine import JsonMachine
    from phloem.grammar.json_machine.text_cursors import NameCursor, NamePlace, StringCursor

_NARROW = 16
"""So few plain bytes are walked rather than swept."""
_MOST_STATES = 4096
_MOST_KNOWN = 64
_MOST_FRONT = 128
"""How many places along names are told apart; further ones leave the region."""
_WINDOW = 64
"""How many characters a region of counted content reaches; longer tokens walk on from there."""
_WITHIN = 8
"""States per character of `of_lengths`."""
_LEADS = (b"", b"\xc2", b"\xe0", b"\xe1", b"\xed", b"\xf0", b"\xf1", b"\xf4")
"""Bytes that lead to each of them."""

_ENDS = bytes((QUOTE, BACKSLASH))
_LEAVING_WINDOW = _ENDS + bytes(byte for byte in PLAIN if byte & 0xC0 != 0x80)
_PLAIN = np.zeros(256, bool)
_PLAIN[list(PLAIN)] = True


class Joint(NamedTuple):
    """Several DFAs side by side, on plain bytes only."""

    dfa: Dfa
    parts: list[tuple[int, ...]]
    """By state: the states of each, -1 where it is dead."""
    states: dict[tuple[int, ...], int]
    """The other way round."""


class Regions:
    """The regions of one machine; the DFAs that they share are kept."""

    def __init__(self, machine: JsonMachine) -> None:
        self._machine = machine
        self._joints: dict[tuple[tuple[Dfa, ...], tuple[int, ...]], Joint | None] = {}

    def of_string(self, cursor: StringCursor) -> Region | None:
        """Where a cursor is within the content of values."""
        places = cursor.places
        if not _is_wide(cursor.content_bytes(places)):
            return None
        if any(string.is_counted for string, _, _, _ in places):
            return self._counted(cursor) if len(places) == 1 else None
        strings = [string for string, _, _, _ in places]
        found = self._joint(
            tuple(string.dfa for string in strings), tuple(state for _, state, _, _ in places)
        )
        if found is None:
            return None
        joint, state = found

        def at(state: int) -> StringCursor:
            targets = zip(places, joint.parts[state], strict=True)
            moved = tuple(
                (s, target, 0, level) for (s, _, _, level), target in targets if target >= 0
            )
            return self._machine.cursor(type(cursor), cursor.layout, moved, b"")

        return Region(joint.dfa, state, at, leaving=_ENDS)

    def _counted(self, cursor: StringCursor) -> Region:
        ((string, state, count, level),) = cursor.places
        states = [string.dfa.run(lead) for lead in _LEADS]
        within = states.index(state)
        ended = count - bool(within)
        shift = 0 if string.most is None else max(0, _WINDOW - (string.most - ended))

        def at(number: int) -> StringCursor:
            characters, inner = divmod(number, _WITHIN)
            begun = ended + characters - shift + bool(inner)
            if string.most is None:
                begun = min(begun, string.fewest)
            place = (string, states[inner], begun, level)
            return self._machine.cursor(type(cursor), cursor.layout, (place,), b"")

        leaving = _ENDS if shift else _LEAVING_WINDOW
        return Region(_window(), shift * _WITHIN + within, at, leaving=leaving)

    def of_name(self, cursor: NameCursor) -> Region | None:
        """Where a cursor is within names."""
        places = cursor.places
        if not _is_wide(cursor.content_bytes(places)):
            return None
        open_classes = [
            (index, number)
            for index, (_, _, _, states, _) in enumerate(places)
            for number, at in enumerate(states)
            if at >= 0
        ]
        dfas = tuple(
            places[index][0].machine.others[places[index][0].classes[number]][0]
            for index, number in open_classes
        )
        found = self._joint(dfas, tuple(places[i][3][number] for i, number in open_classes))
        if found is None:
            return None
        joint, state = found
        machine = self._machine

        def behind(state: int) -> NameCursor:
            alive = dict(zip(open_classes, joint.parts[state], strict=True))
            moved = []
            for index, (before, around, _, states, _) in enumerate(places):
                targets = tuple(alive.get((index, n), -1) for n in range(len(states)))
                if any(target >= 0 for target in targets):
                    moved.append((before, around, None, targets, UNKNOWN))
            return machine.cursor(type(cursor), cursor.layout, tuple(moved), b"")

        front = _Front(cursor, joint.dfa, state, _planned(places))
        if not front.edges and not _is_special(places):
            return Region(joint.dfa, state, behind, leaving=_ENDS)
        known = len(front.places)

        def at(number: int) -> NameCursor:
            if number >= known:
                return behind(number - known)
            return machine.cursor(type(cursor), cursor.layout, front.places[number], b"")

        return Region(front.overlaid(joint.dfa), 0, at, leaving=front.leaving)

    def _joint(self, dfas: tuple[Dfa, ...], at: tuple[int, ...]) -> tuple[Joint, int] | None:
        """The joint DFA of some, and its state; None if it is too large."""
        for start in ((0,) * len(dfas), at):
            if (dfas, start) not in self._joints:
                if len(self._joints) >= _MOST_KNOWN:
                    del self._joints[next(iter(self._joints))]
                self._joints[dfas, start] = _joint(dfas, start)
            joint = self._joints[dfas, start]
            if joint is not None and at in joint.states:
                return joint, joint.states[at]
        return None


class _Front:
    """The places along declared, used and planned names, breadth first, which stay exact."""

    def __init__(self, cursor: NameCursor, dfa: Dfa, state: int, planned: list[bytes]) -> None:
        self.places: list[tuple[NamePlace, ...]] = [cursor.places]
        paths = [b""]
        self.behind = [state]
        """By place: the state of the joint DFA, -1 where no undeclared name is possible."""
        self.edges: list[tuple[int, int, int]] = []
        """Place, byte, and the place after it; -1 where the byte leaves the region."""
        for number, places in enumerate(self.places):
            path = paths[number]
            length = len(path)
            further = {
                word[length] for word in planned if len(word) > length and word.startswith(path)
            }
            for byte in sorted(_told_apart(places).union(filter(_PLAIN.item, further))):
                moved = cursor.fed(places, byte) if len(self.places) < _MOST_FRONT else ()
                self.edges.append((number, byte, len(self.places) if moved else -1))
                if moved:
                    at = self.behind[number]
                    self.behind.append(-1 if at < 0 else dfa.step(at, byte))
                    self.places.append(moved)
                    paths.append(path + bytes((byte,)))

    @property
    def leaving(self) -> bytes:
        """The bytes that may leave the region."""
        return bytes({*_ENDS, *(byte for _, byte, target in self.edges if target < 0)})

    def overlaid(self, dfa: Dfa) -> Dfa:
        """These places, numbered from 0, and behind them the states of a DFA."""
        known, table = len(self.places), dfa.table
        bytes_ = np.unique(np.array([byte for _, byte, _ in self.edges], np.uint8))
        classes = table.classes.astype(np.int32)
        rows = np.append(table.next, np.full((1, table.next.shape[1]), -1, np.int32), axis=0)
        rows = np.where(rows < 0, -1, rows + known)
        rows = np.concatenate([rows[self.behind], rows[:-1]])
        rows = np.append(rows, rows[:, classes[bytes_]], axis=1)
        columns = {byte: table.next.shape[1] + i for i, byte in enumerate(bytes_.tolist())}
        for place, byte, target in self.edges:
            rows[place, columns[byte]] = target
        for byte, column in columns.items():
            classes[byte] = column
        used, numbers = np.unique(classes, return_inverse=True)
        return _unchanged(rows[:, used], numbers.reshape(-1).astype(np.uint8))


def _is_special(places: tuple[NamePlace, ...]) -> bool:
    """Whether the name so far is one that was declared or used."""
    return any(
        tree is not None or name in state.names or state.machine.needs_names
        for state, _, tree, _, name in places
    )


def _planned(places: tuple[NamePlace, ...]) -> list[bytes]:
    """The rests of undeclared names that are on ways to the end, which have to stay exact."""
    return [
        state.machine.rests(number, at, name, state.names)[0]
        for state, _, _, states, name in places
        if state.machine.needs_names
        for number, at in zip(state.classes, states, strict=True)
        if at >= 0
    ]


def _told_apart(places: tuple[NamePlace, ...]) -> set[int]:
    """The plain bytes that go on in a declared name, or in one that was used."""
    found: set[int] = set()
    for state, _, tree, states, name in places:
        if tree is not None:
            found.update(b for b, below in tree.children.items() if below.below & state.choices)
        if any(at >= 0 for at in states):
            length = len(name)
            found.update(
                used[length] for used in state.names if len(used) > length and used.startswith(name)
            )
    return {byte for byte in found if _PLAIN[byte]}


def _joint(dfas: tuple[Dfa, ...], start: tuple[int, ...]) -> Joint | None:
    """From a state of each; None if it is too large."""
    if len(dfas) == 1:
        parts: list[tuple[int, ...]] = [(state,) for state in range(dfas[0].states)]
        return Joint(_plain(dfas[0].table), parts, {part: part[0] for part in parts})
    columns = np.stack([dfa.table.classes for dfa in dfas])
    firsts, classes = np.unique(columns, axis=1, return_index=True, return_inverse=True)[1:]
    rows = [
        np.append(dfa.table.next, np.full((1, dfa.table.next.shape[1]), -1, np.int32), axis=0)[
            :, dfa.table.classes[firsts]
        ].tolist()
        for dfa in dfas
    ]
    parts, states = [start], {start: 0}
    following: list[list[int]] = []
    for part in parts:
        targets = zip(*(row[state] for row, state in zip(rows, part, strict=True)), strict=True)
        line = []
        for target in targets:
            if max(target) < 0:
                line.append(-1)
                continue
            number = states.setdefault(target, len(parts))
            if number == len(parts):
                parts.append(target)
            line.append(number)
        following.append(line)
        if len(parts) > _MOST_STATES:
            return None
    table = Table(
        np.array(following, np.int32),
        np.zeros(len(parts), bool),
        classes.reshape(-1).astype(np.uint8),
    )
    return Joint(_plain(table), parts, states)


def _plain(table: Table) -> Dfa:
    """The same states, without the bytes that do not stand for themselves in a string."""
    pairs, classes = np.unique(table.classes.astype(np.int32) * 2 + _PLAIN, return_inverse=True)
    rows = np.where(pairs & 1, table.next[:, pairs >> 1], -1)
    return _unchanged(rows, classes.reshape(-1).astype(np.uint8))


@lru_cache(maxsize=1)
def _window() -> Dfa:
    table = of_lengths(0, _WINDOW, Budget())
    table.next[_WINDOW * _WITHIN :] = -1
    return _plain(table)


def _unchanged(rows: Ints, classes: Bytes) -> Dfa:
    """A DFA whose states stay what they are; a `Dfa` made in another way would be minimized."""
    return Dfa.deserialize(packed(Table(rows.astype(np.int32), np.zeros(len(rows), bool), classes)))


def _is_wide(content: set[int]) -> bool:
    return sum(map(bool, _PLAIN[list(content)])) > _NARROW
