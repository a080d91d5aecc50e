"""Values as parts of a text: what may come within one is the same wherever it stands.

A position within a value is told by cursors as deep in containers as the text is, so each place has
its own. A part is the same position with nothing around the value: masks find out once what tokens
come to within it. Values without containers are alike in all schemas that have them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from phloem.grammar.automaton import Cursor, Texts
from phloem.grammar.json_machine.cursors import After, Candidates, Indent, JsonCursor, Member
from phloem.grammar.json_machine.levels import Level

_END, _NAME, _LINE, _ITEM = "end", "name", "line", "item"


class ValuePart:
    """See `automaton.Part`. The base of it is the level around a whole text.

    It ends at the first name or line of an object, and behind the bracket of an array.
    """

    __slots__ = ("_candidates", "_content", "_kind", "_level", "_origin", "key", "others")
    is_shared = True

    def __init__(
        self,
        origin: JsonCursor,
        level: Level,
        kind: type[JsonCursor],
        content: tuple[Any, ...],
        key: tuple[object, ...],
        others: bytes = b"",
        candidates: Candidates = (),
    ) -> None:
        """`level` is behind the value; `content` is what `kind` takes, with the base instead.

        `candidates` are what the value may be, if it may be a container.
        """
        self._origin = origin
        self._level = level
        self._kind = kind
        self._content = content
        self._candidates = candidates
        self.key = (kind, *key)
        self.others = others

    def holds(self, texts: Texts) -> bool:
        """Of all texts."""
        return True

    def cursor(self) -> JsonCursor:
        """The position with nothing around the value."""
        return self._origin.machine.cursor(self._kind, self._origin.layout, *self._content)

    def mark(self, cursor: Cursor) -> object | None:
        """Of ends, and of what is within a container."""
        assert isinstance(cursor, JsonCursor), "what follows from a cursor of JSON is another"
        if cursor.is_name:
            return _NAME
        if isinstance(cursor, Member) and cursor.level.kind == "array":
            return _ITEM
        return _END if cursor.complete else _LINE if isinstance(cursor, Indent) else None

    def outer(self, mark: object) -> JsonCursor:
        """Behind the value, or within it."""
        machine, layout = self._origin.machine, self._origin.layout
        if mark is _END:
            return machine.cursor(After, layout, self._level)
        opened = machine.opened(self._candidates, "array" if mark is _ITEM else "object")
        assert opened is not None, "the key tells what the value may be"
        if mark is _ITEM:
            return machine.cursor(Member, layout, opened, not machine.is_compact, True)
        growing = machine.levels.growing(opened)
        assert growing is not None, "the key tells objects that may have a name"
        if mark is _NAME:
            return machine.name(layout, growing)
        return machine.cursor(Indent, layout, growing, False, 0, 0)


def common_level(levels: Sequence[Level]) -> Level | None:
    """The level that all of some are; None if they differ."""
    return levels[0] if levels and levels.count(levels[0]) == len(levels) else None
