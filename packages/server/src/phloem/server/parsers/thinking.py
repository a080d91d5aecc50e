"""Reasoning between tags, `<think>` and `</think>`, before an answer in any notation."""

from __future__ import annotations

from phloem.server.parsers.base import Content, OutputParser, Reasoning
from phloem.server.parsers.reading import Reader, Steps

BEGIN, END = "<think>", "</think>"


class ThinkingParser(Reader):
    """Tells the reasoning at the beginning of an output, and hands the rest on.

    White space around the tags belongs to them, but for that in front of the last one.
    """

    MARKS = (BEGIN, END)

    def __init__(self, inner: OutputParser, *, inside: bool, separate: bool = True) -> None:
        """`inside`: the text begins with reasoning, whether or not it says so by a tag. Without
        `separate` the reasoning is content, with its tags.
        """
        super().__init__()
        self._inner = inner
        self._inside = inside
        self._separate = separate

    def _read(self) -> Steps[None]:
        yield from self._space()
        if (yield from self._comes(BEGIN)) or self._inside:
            yield from self._thoughts()
        else:
            self._hand_on("".join(self._taken))
            self._drop()
        while True:
            text = self._take(len(self._rest))
            self._drop()
            self._hand_on(text)
            if not (yield from self._more()):
                break
        self._new += self._inner.end()

    def _thoughts(self) -> Steps[None]:
        yield from self._space()
        self._let_go()
        if (yield from self._text((END,), self._think)):
            yield from self._space()
            self._let_go()

    def _let_go(self) -> None:
        """Of tags, and of the white space around them."""
        if not self._separate:
            self._give_back()
        self._drop()

    def _think(self, text: str) -> None:
        if text:
            self._new.append(Reasoning(text) if self._separate else Content(text))

    def _hand_on(self, text: str) -> None:
        if text:
            self._new += self._inner.feed(text)
