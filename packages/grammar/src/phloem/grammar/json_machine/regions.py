"""Regions: the plain bytes of strings and names as DFAs, so that wide masks are swept at once.

A region's DFA has no quotes, backslashes or control characters; those leave it. Several contents
that are possible side by side become one joint DFA. For names, bytes that go on in a declared or a
used name are told apart; behind others, what the name was is not told, which costs masks the
tokens that hold the end of one undeclared name and all of another.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from functools import lru_cache
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from phloem.grammar.automaton import Moved, Region
from phloem.grammar.dfa import Budget, Dfa
from phloem.grammar.dfa.literals import of_lengths
from phloem.grammar.dfa.serial import packed
from phloem.grammar.dfa.table import Bytes, Ints, Table
from phloem.grammar.json_machine.layout import SPACE, TAB
from phloem.grammar.json_machine.objects import UNKNOWN, numbers_of
from phloem.grammar.json_machine.spelling import BACKSLASH, PLAIN, QUOTE

if TYPE_CHECKING:
    from phloem.grammar.json_machine.cursors import Indent, JsonCursor
    from phloem.grammar.json_machine.machine import JsonMachine
    from phloem.grammar.json_machine.name_cursors import NameCursor, NamePlace
    from phloem.grammar.json_machine.text_cursors import StringCursor

_NARROW = 16
"""So few plain bytes are walked rather than swept."""
_MOST_STATES = 4096
_MOST_KNOWN = 64
_WINDOW = 64
"""How many characters a region of counted content reaches; longer tokens walk on from there."""
_WITHIN = 8
"""States per character of `of_lengths`."""
_LEADS = (b"", b"\xc2", b"\xe0", b"\xe1", b"\xed", b"\xf0", b"\xf1", b"\xf4")
"""Bytes that lead to each of them."""

_ENDS = bytes((QUOTE, BACKSLASH))
_LEAVING_WINDOW = _ENDS + bytes(byte for byte in PLAIN if byte & 0xC0 != 0x80)
_MOST_BLANKS = 1024
_TAB_CLASS, _SPACE_CLASS = 1, 2
_PLAIN_SET = frozenset(PLAIN)
WIDE = _NARROW + 256 - len(_PLAIN_SET)
"""More bytes than that hold so many plain ones that they are swept."""
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

    def prepare(self, dfa: Dfa) -> None:
        """Make the region of a string whose content is that of a DFA."""
        self._joint((dfa,), (0,))

    def of_string(self, cursor: StringCursor) -> Region | None:
        """Where a cursor is within the content of values."""
        # What is kept refers to the machine and not to the cursor, which keeps it.
        places, kind, layout = cursor.places, type(cursor), cursor.layout
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
            return self._machine.cursor(kind, layout, moved, b"")

        return Region(joint.dfa, state, at, leaving=_ENDS)

    def _counted(self, cursor: StringCursor) -> Region:
        ((string, state, count, level),) = cursor.places
        kind, layout = type(cursor), cursor.layout
        states = _behind_leads(string.dfa)
        within = states.index(state)
        ended = count - bool(within)
        shift = 0 if string.most is None else max(0, _WINDOW - (string.most - ended))

        def at(number: int) -> StringCursor:
            characters, inner = divmod(number, _WITHIN)
            begun = ended + characters - shift + bool(inner)
            if string.most is None:
                begun = min(begun, string.fewest)
            place = (string, states[inner], begun, level)
            return self._machine.cursor(kind, layout, (place,), b"")

        if not shift:
            return Region(_window(), within, at, leaving=_LEAVING_WINDOW)
        by = shift * _WITHIN
        moved = Moved(by, _WINDOW * _WITHIN)
        return Region(_window(), by + within, at, leaving=_ENDS, moved=moved)

    def of_indent(self, cursor: Indent) -> Region | None:
        """Where a cursor is within the blanks of an indentation."""
        tabs, spaces = cursor.room
        if tabs + spaces > _MOST_BLANKS:
            return None
        count = cursor.count
        state = count if cursor.blank != SPACE else tabs + count

        def at(state: int) -> Indent:
            if state <= tabs:
                return cursor.at(TAB if state else 0, state)
            return cursor.at(SPACE, state - tabs)

        return Region(_indentation(tabs, spaces), state, at, leaving=bytes(cursor.last()))

    def of_name(self, cursor: NameCursor) -> Region | None:
        """Where a cursor is within names."""
        places, kind, layout = cursor.places, type(cursor), cursor.layout
        if not (_has_wide_class(places) or _is_wide(cursor.content_bytes(places))):
            return None
        open_classes, dfas, at = [], [], []
        for index, (before, _, _, states, _) in enumerate(places):
            for number, state in enumerate(states):
                if state >= 0:
                    open_classes.append((index, number))
                    dfas.append(before.machine.others[before.classes[number]][0])
                    at.append(state)
        found = self._joint(tuple(dfas), tuple(at))
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
            return machine.cursor(kind, layout, tuple(moved), b"")

        apart = _told_apart(places)
        dead = _dead(cursor, apart) if _may_run_out(places) else ()
        return Region(joint.dfa, state, behind, leaving=_ENDS, apart=apart, dead=dead)

    def _joint(self, dfas: tuple[Dfa, ...], at: tuple[int, ...]) -> tuple[Joint, int] | None:
        """The joint DFA of some, and its state; None if it is too large."""
        for start in ((0,) * len(dfas), at):
            joint: Joint | Literal[False] | None = self._joints.get((dfas, start), False)
            if joint is False:
                if len(self._joints) >= _MOST_KNOWN:
                    del self._joints[next(iter(self._joints))]
                joint = self._joints[dfas, start] = _joint(dfas, start)
            if joint is not None and at in joint.states:
                return joint, joint.states[at]
        return None


@lru_cache(maxsize=16)
def _behind_leads(dfa: Dfa) -> list[int]:
    return [dfa.run(lead) for lead in _LEADS]


def _has_wide_class(places: tuple[NamePlace, ...]) -> bool:
    """Whether it is clear at once that a great many bytes of content may come next."""
    for state, _, _, states, _ in places:
        machine = state.machine
        for number, at in zip(state.classes, states, strict=True):
            firsts = b"" if at < 0 else machine.others[number][0].first_bytes(at)
            if len(firsts) > WIDE:
                # Where names can run out, not all of them may come.
                return not state.names or machine.paths[number].unbounded
    return False


def _is_special(places: tuple[NamePlace, ...]) -> bool:
    """Whether the name so far is one that was declared or used."""
    return any(
        tree is not None or name in state.names or state.machine.needs_names
        for state, _, tree, _, name in places
    )


def _told_apart(places: tuple[NamePlace, ...]) -> tuple[bytes, ...]:
    """The rests of declared names, and of those that were used, as far as they are plain."""
    found = {b""} if _is_special(places) else set[bytes]()
    for state, _, tree, states, name in places:
        if tree is not None:
            names = state.machine.names
            below = numbers_of(tree.below & state.choices, len(names)).tolist()
            found.update(names[number][tree.depth :] for number in below)
        if any(at >= 0 for at in states):
            found.update(used[len(name) :] for used in state.names if used.startswith(name))
    return tuple(sorted({_plain_part(text) for text in found}))


def _plain_part(text: bytes) -> bytes:
    others = text.translate(None, PLAIN)
    return text[: text.index(others[0])] if others else text


def _may_run_out(places: tuple[NamePlace, ...]) -> bool:
    """Whether some class may have no names left but those that were used."""
    return any(
        at >= 0 and state.names and not state.machine.paths[number].unbounded
        for state, _, _, states, _ in places
        for number, at in zip(state.classes, states, strict=True)
    )


def _dead(cursor: NameCursor, texts: Iterable[bytes]) -> tuple[bytes, ...]:
    """The shortest beginnings of texts that are not legal."""
    found = set()
    for text in texts:
        after: JsonCursor | None = cursor
        for count, byte in enumerate(text, 1):
            after = after and after.step(byte)
            if after is None:
                found.add(text[:count])
                break
    return tuple(sorted(found))


def _joint(dfas: tuple[Dfa, ...], start: tuple[int, ...]) -> Joint | None:
    """From a state of each; None if it is too large."""
    if len(dfas) == 1:
        return _joint_of_one(dfas[0])
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


@lru_cache(maxsize=64)
def _joint_of_one(dfa: Dfa) -> Joint:
    parts: list[tuple[int, ...]] = [(state,) for state in range(dfa.states)]
    return Joint(_plain(dfa.table), parts, {part: part[0] for part in parts})


def _plain(table: Table) -> Dfa:
    """The same states, without the bytes that do not stand for themselves in a string."""
    pairs, classes = np.unique(table.classes.astype(np.int32) * 2 + _PLAIN, return_inverse=True)
    rows = np.where(pairs & 1, table.next[:, pairs >> 1], -1)
    return _unchanged(rows, classes.reshape(-1).astype(np.uint8))


@lru_cache(maxsize=64)
def _indentation(tabs: int, spaces: int) -> Dfa:
    """Up to so many tabs, or spaces: state n is behind n tabs, state tabs + n behind n spaces."""
    following = np.full((1 + tabs + spaces, 3), -1, np.int32)
    following[:tabs, _TAB_CLASS] = np.arange(1, tabs + 1)
    following[tabs + 1 : -1, _SPACE_CLASS] = np.arange(tabs + 2, 1 + tabs + spaces)
    if spaces:
        following[0, _SPACE_CLASS] = tabs + 1
    classes = np.zeros(256, np.uint8)
    classes[TAB], classes[SPACE] = _TAB_CLASS, _SPACE_CLASS
    return _unchanged(following, classes)


@lru_cache(maxsize=1)
def _window() -> Dfa:
    table = of_lengths(0, _WINDOW, Budget())
    table.next[_WINDOW * _WITHIN :] = -1
    return _plain(table)


def _unchanged(rows: Ints, classes: Bytes) -> Dfa:
    """A DFA whose states stay what they are; a `Dfa` made in another way would be minimized."""
    return Dfa.deserialize(packed(Table(rows.astype(np.int32), np.zeros(len(rows), bool), classes)))


def _is_wide(content: Set[int]) -> bool:
    if len(content) > WIDE:
        return True
    return len(content) > _NARROW and len(_PLAIN_SET & content) > _NARROW
