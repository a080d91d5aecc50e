"""An answer's parts as blocks, one after the other: a text, some reasoning, or a call of a tool.

Owns where a block begins and ends, for the APIs that tell an answer block by block. What a block
looks like on the wire is theirs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from phloem.server.parsers import CallArguments, CallBegin, CallEnd, Content, Part, Reasoning

Kind = Literal["text", "reasoning", "call"]


@dataclass(slots=True)
class Block:
    """What one block says so far; of a call, its arguments."""

    index: int
    kind: Kind
    name: str = ""
    """Of the function that is called."""
    text: str = ""
    whole: bool = True
    """Unset of a call that was cut."""


@dataclass(frozen=True, slots=True)
class Begun:
    """A block begins; it has no text yet."""

    block: Block


@dataclass(frozen=True, slots=True)
class Grown:
    """A block has more text."""

    block: Block
    text: str


@dataclass(frozen=True, slots=True)
class Ended:
    """A block has all of its text."""

    block: Block


Change = Begun | Grown | Ended


class Blocks:
    """The blocks of one sequence.

    White space between two blocks is in none: it is told only before a text that goes on, or where
    it is all that there is.
    """

    def __init__(self) -> None:
        self.all: list[Block] = []
        self._open: Block | None = None
        self._space = ""
        """White space that no text has followed yet."""

    def take(self, parts: Iterable[Part]) -> Iterator[Change]:
        """What more parts change. To be read to its end."""
        for part in parts:
            if isinstance(part, Content):
                yield from self._content(part.text)
            elif isinstance(part, Reasoning):
                yield from self._grow("reasoning", part.text)
            elif isinstance(part, CallBegin):
                yield from self._begin("call", part.name)
            elif isinstance(part, CallArguments):
                yield self._more(part.text)
            else:
                yield from self._end_call(part)

    def end(self) -> Iterator[Change]:
        """There are no more parts."""
        if self._space and not self.all:
            yield from self._grow("text", self._space)
        yield from self._close()

    def _content(self, text: str) -> Iterator[Change]:
        text = self._space + text
        self._space = ""
        if (self._open is None or self._open.kind != "text") and text.isspace():
            self._space = text
            return
        yield from self._grow("text", text)

    def _grow(self, kind: Kind, text: str) -> Iterator[Change]:
        if self._open is None or self._open.kind != kind:
            yield from self._begin(kind)
        yield self._more(text)

    def _more(self, text: str) -> Grown:
        block = self._open
        assert block is not None, "it has begun"
        block.text += text
        return Grown(block, text)

    def _begin(self, kind: Kind, name: str = "") -> Iterator[Change]:
        yield from self._close()
        self._space = self._space if kind == "text" else ""
        block = self._open = Block(len(self.all), kind, name, whole=kind != "call")
        self.all.append(block)
        yield Begun(block)

    def _end_call(self, end: CallEnd) -> Iterator[Change]:
        assert self._open is not None, f"call {end.index} ends, but none is open"
        self._open.whole = True
        yield from self._close()

    def _close(self) -> Iterator[Change]:
        block, self._open = self._open, None
        if block is not None:
            yield Ended(block)
