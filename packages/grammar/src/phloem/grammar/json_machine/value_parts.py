"""Values as parts of a text: what may come within one is the same wherever it stands.

A position within a value is told by cursors as deep in containers as the text is, so each place has
its own. A part is the same position with nothing around the value: masks find out once what tokens
come to within it. Values without containers are alike in all schemas that have them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from phloem.grammar.automaton import Cursor
from phloem.grammar.json_machine.cursors import After, Candidates, Indent, JsonCursor
from phloem.grammar.json_machine.layout import Layout
from phloem.grammar.json_machine.levels import Level

_END, _NAME, _LINE = "end", "name", "line"


class ValuePart:
    """See `automaton.Part`. The base of it is the level around a whole text."""

    __slots__ = (
        "_candidates",
        "_content",
        "_kind",
        "_level",
        "_origin",
        "is_shared",
        "key",
        "others",
    )

    def __init__(
        self,
        origin: JsonCursor,
        level: Level,
        kind: type[JsonCursor],
        content: tuple[Any, ...],
        shared_key: tuple[object, ...] | None,
        others: bytes = b"",
        candidates: Candidates = (),
    ) -> None:
        """`level` is behind the value; `content` is what `kind` takes, with the base instead.

        `candidates` are what the value may be, if it may be an object.
        """
        self._origin = origin
        self._level = level
        self._kind = kind
        self._content = content
        self._candidates = candidates
        self.is_shared = shared_key is not None
        """Whether it ends at the first name or line of an object, and no array can be in it."""
        self.key: tuple[object, ...] = (
            (kind, origin.layout, content) if shared_key is None else (kind, *shared_key)
        )
        self.others = others

    def cursor(self) -> JsonCursor:
        """The position with nothing around the value."""
        return self._origin.machine.cursor(self._kind, self._origin.layout, *self._content)

    def mark(self, cursor: Cursor) -> object | None:
        """Of ends, with how lines are indented by then; and of blanks whose number depends on how
        deep they stand. Shared parts come to no other blanks than the first of an object."""
        assert isinstance(cursor, JsonCursor), "what follows from a cursor of JSON is another"
        if self.is_shared:
            if cursor.is_name:
                return _NAME
            return _END if cursor.complete else _LINE if isinstance(cursor, Indent) else None
        if cursor.complete:
            return cursor.layout
        return cursor if isinstance(cursor, Indent) else None

    def outer(self, mark: object) -> JsonCursor:
        """Behind the value, or within the blanks."""
        machine = self._origin.machine
        if isinstance(mark, Indent):
            level = machine.levels.onto(mark.level, self._level)
            content = (level, mark.is_closing, mark.blank, mark.count)
            return machine.cursor(Indent, mark.layout, *content)
        layout = mark if isinstance(mark, Layout) else self._origin.layout
        if mark is _NAME or mark is _LINE:
            opened = machine.opened(self._candidates, "object")
            growing = None if opened is None else machine.levels.growing(opened)
            assert growing is not None, "the key tells objects that may have a name"
            if mark is _NAME:
                return machine.name(layout, growing)
            return machine.cursor(Indent, layout, growing, False, 0, 0)
        return machine.cursor(After, layout, self._level)


def common_level(levels: Sequence[Level]) -> Level | None:
    """The level that all of some are; None if they differ."""
    return levels[0] if levels and levels.count(levels[0]) == len(levels) else None
