"""Values from JSON taken apart into pieces, each of which is put together again in a moment.

Owns what the pieces are. A piece is a letter and JSON: `e` has small entries of the open list or
object; `[`, `{`, `c` and `t` open a list, an object, a constraint or a text, under the key that
they have in an object; `+` is a part of a text; `]` closes what was opened last. What is open at
first is the whole object.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain, islice
from typing import Any

import msgspec

from phloem.server.bodies.decoding import SCALARS, weight

PIECE = 16_000
"""Characters and items that one piece may have."""
PART = 4 * PIECE
"""Characters of one that is a part of a text, which are read faster."""
_NUMBERS = PIECE // 2


class MadeConstraint(dict[str, Any]):
    """The fields of a constraint that was made of what a request says."""


def taken_apart(content: Mapping[str, Any]) -> Iterator[bytes]:
    """The pieces of an object from JSON, which may have `MadeConstraint`s among its values."""
    encode = msgspec.json.encode
    walks = [_Walk(content)]
    while walks:
        walk = walks[-1]
        entries = walk.small_ones()
        if entries:
            yield b"e" + encode(entries)
        if walk.large is not None:
            key, value = walk.large
            kind = _kind_of(value)
            yield kind + encode(key)
            if kind != b"t":
                walks.append(_Walk(value))
                continue
            for begin in range(0, len(value), PART):
                yield b"+" + encode(value[begin : begin + PART])
            yield b"]"
        elif walk.over:
            walks.pop()
            if walks:
                yield b"]"


def _kind_of(value: Any) -> bytes:
    if isinstance(value, str):
        return b"t"
    if isinstance(value, MadeConstraint):
        return b"c"
    return b"{" if isinstance(value, dict) else b"["


class _Walk:
    """On the way through a container's entries."""

    def __init__(self, container: Any) -> None:
        self.large: tuple[str | None, Any] | None = None
        """Behind the small ones that were given last: one that is too large for a piece."""
        self.over = False
        """No entries are left."""
        self._named = isinstance(container, dict)
        self._numbers = not self._named and set(map(type, container)) <= SCALARS
        self._rest: Iterator[Any] = iter(container.items() if self._named else container)
        self._next: list[Any] = []
        """One that did not fit into the last piece."""

    def small_ones(self) -> dict[str, Any] | list[Any]:
        """The next entries, as many as a piece has or there are in front of a large one."""
        self.large = None
        if self._numbers:
            numbers = list(islice(self._rest, _NUMBERS))
            self.over = len(numbers) < _NUMBERS
            return numbers
        entries: list[Any] = []
        left = PIECE
        for entry in chain(self._taken_next(), self._rest):
            size = weight(entry, PIECE)
            value = entry[1] if self._named else entry
            # A long key may have a number, which cannot be taken apart.
            is_large = size > PIECE and isinstance(value, str | list | dict)
            if is_large or isinstance(value, MadeConstraint):
                self.large = (entry[0] if self._named else None, value)
                break
            if size > left and entries:
                self._next = [entry]
                break
            left -= size
            entries.append(entry)
        else:
            self.over = True
        return dict(entries) if self._named else entries

    def _taken_next(self) -> list[Any]:
        entries, self._next = self._next, []
        return entries
