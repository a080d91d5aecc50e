"""The contract of the parsers: what the parts of an output are, and how they come."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Reasoning:
    """More of what the model thinks before it answers."""

    text: str


@dataclass(frozen=True, slots=True)
class Content:
    """More of the answer itself."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegin:
    """A call of a tool begins; its name is known."""

    index: int
    """Of the call in the output, from 0."""
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More of a call's arguments; all of a call's are together the JSON text of an object."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class CallEnd:
    """A call is whole: its arguments are a JSON object. One that was cut has no end."""

    index: int


Part = Reasoning | Content | CallBegin | CallArguments | CallEnd


class OutputParser(Protocol):
    """Reads one output, piece by piece.

    The parts do not depend on how the text was cut into pieces, but for the cuts within one kind of
    text; joined, they are the same.
    """

    def feed(self, text: str) -> list[Part]:
        """The parts that more of the text makes certain."""
        ...

    def end(self) -> list[Part]:
        """What was held back, at the end of the text. A call that is not whole is not made up: what
        of it was told stays told, and what was not is content.
        """
        ...


class PlainText:
    """For outputs without any notation: all text is content."""

    def feed(self, text: str) -> list[Part]:
        """The text."""
        return [Content(text)] if text else []

    def end(self) -> list[Part]:
        """Nothing was held back."""
        return []
