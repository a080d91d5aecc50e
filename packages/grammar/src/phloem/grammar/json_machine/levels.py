"""The open containers of a text, innermost first, each in all the ways that it can be read.

Alternatives of a schema (`anyOf` of objects, say) are read side by side. A `Level` is what the
innermost open container may be: a set of states, each with the levels around it that it stands in.
States that are equal share one entry whose surroundings are united, so alternatives that
differ only further out do not multiply further in: a graph-structured stack.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, TypeAlias
from weakref import WeakValueDictionary

from phloem.grammar.json_machine.arrays import ArrayState
from phloem.grammar.json_machine.objects import ObjectState

Container: TypeAlias = "ArrayState | ObjectState"
Kind: TypeAlias = Literal["text", "array", "object"]


class Level:
    """Interned: identity is equality."""

    __slots__ = ("__weakref__", "_after", "_growing", "depth", "entries", "kind")

    def __init__(
        self, kind: Kind, depth: int, entries: tuple[tuple[Container, Level], ...]
    ) -> None:
        self.kind = kind
        self.depth = depth
        """How many containers are open; 0 for the level around the whole text."""
        self.entries = entries
        self._after: Level | Literal[False] | None = False
        self._growing: Level | Literal[False] | None = False


class Levels:
    """All levels that are in use."""

    def __init__(self) -> None:
        self._known: WeakValueDictionary[tuple[object, ...], Level] = WeakValueDictionary()
        self.text = Level("text", 0, ())
        """The level around the whole text."""

    def of(self, kind: Kind, entries: Iterable[tuple[Container, Level]]) -> Level | None:
        """The level of some entries, those with equal states made one; None if there are none."""
        merged: dict[Container, Level] = {}
        for state, around in entries:
            known = merged.get(state)
            merged[state] = around if known is None else self.union((known, around))
        if len(merged) < 2:
            return next((self.single(kind, *entry) for entry in merged.items()), None)
        key = (kind, frozenset(merged.items()))
        level = self._known.get(key)
        if level is None:
            entries = tuple(merged.items())
            level = self._known[key] = Level(kind, entries[0][1].depth + 1, entries)
        return level

    def single(self, kind: Kind, state: Container, around: Level) -> Level:
        """The level of one entry."""
        key = (kind, ((state, around),))
        level = self._known.get(key)
        if level is None:
            level = self._known[key] = Level(kind, around.depth + 1, key[1])
        return level

    def union(self, levels: Iterable[Level]) -> Level:
        """The level of all entries of one or more levels, which are of one kind."""
        distinct = tuple(dict.fromkeys(levels))
        if len(distinct) == 1:
            return distinct[0]
        united = self.of(distinct[0].kind, (entry for level in distinct for entry in level.entries))
        return united or distinct[0]

    def after(self, level: Level) -> Level | None:
        """The level around, once the container is closed; None where it cannot be."""
        if level._after is False:
            around = [around for state, around in level.entries if state.closable]
            level._after = self.union(around) if around else None
        return level._after

    def growing(self, level: Level) -> Level | None:
        """The entries of a level to which something may be added; None if there are none."""
        if len(level.entries) == 1:
            return level if level.entries[0][0].can_grow else None
        if all(state.can_grow for state, _ in level.entries):
            return level
        if level._growing is False:
            entries = [entry for entry in level.entries if entry[0].can_grow]
            level._growing = self.of(level.kind, entries)
        return level._growing
