"""What a regular expression says, as a tree; the same for all dialects."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

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


@dataclass(frozen=True, slots=True)
class Chars:
    """One character of a set."""

    chars: CharSet


@dataclass(frozen=True, slots=True)
class Assertion:
    """The empty text, at certain places only."""

    place: Place


@dataclass(frozen=True, slots=True)
class Sequence:
    """One item after the other; none: the empty text."""

    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Alternatives:
    """Any one of the options."""

    options: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """An item `fewest` to `most` times; None: any number more."""

    item: Node
    fewest: int
    most: int | None


Node: TypeAlias = "Chars | Assertion | Sequence | Alternatives | Repeat"
