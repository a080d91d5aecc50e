"""What a regular expression says, as a tree; the same for all dialects."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

from phloem.grammar.regex.charset import CharSet

Place: TypeAlias = Literal[
    "start",
    "start of line",
    "end",
    "end or last newline",
    "end of line",
    "boundary",
    "no boundary",
    "no boundary, no empty text",
]


class Chars(NamedTuple):
    """One character of a set."""

    chars: CharSet


class Assertion(NamedTuple):
    """The empty text, at certain places only."""

    place: Place


class Sequence(NamedTuple):
    """One item after the other; none: the empty text."""

    items: tuple[Node, ...]


class Alternatives(NamedTuple):
    """Any one of the options."""

    options: tuple[Node, ...]


class Repeat(NamedTuple):
    """An item `fewest` to `most` times; None: any number more."""

    item: Node
    fewest: int
    most: int | None


Node: TypeAlias = "Chars | Assertion | Sequence | Alternatives | Repeat"
