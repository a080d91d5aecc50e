"""Harmony, the notation of gpt-oss: messages on channels, which have reasoning, calls and answer.

See OpenAI's "harmony response format".
"""

from __future__ import annotations

import re
from collections.abc import Collection

from phloem.server.parsers.base import Content, OutputParser, PlainText, Reasoning
from phloem.server.parsers.reading import LONGEST, NotACallError, Reader, Steps

_START, _CHANNEL, _MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
_BEGINS = (_START, _CHANNEL)
_ENDS = ("<|end|>", "<|call|>", "<|return|>")
_CALLED = re.compile(r"(?:^|\s|assistant)to=(\S+?)(?=\s|<|$)")
_CHANNEL_NAME = re.compile(r"<\|channel\|>\s*(\w+)")


class HarmonyParser(Reader):
    """`analysis` is reasoning, a message to `functions.NAME` a call, all else content."""

    MARKS = (*_BEGINS, _MESSAGE, *_ENDS, "<|constrain|>")

    def __init__(
        self,
        tools: Collection[str] = (),
        inner: OutputParser | None = None,
        *,
        separate: bool = True,
    ) -> None:
        """`inner` reads the final answer; without `separate` reasoning is content, told as such."""
        super().__init__(tools)
        self._inner = inner or PlainText()
        self._separate = separate
        self._tellers = {"analysis": self._think, "final": self._answer}
        """By channel; what is on others is content."""

    def _read(self) -> Steps[None]:
        # What stands before is the prompt's: a header may go on with the recipient.
        mark: str | None = ""
        yield from self._space()
        if not (yield from self._comes("to=functions.")):
            self._give_back()
            mark = yield from self._text(_BEGINS)
        while mark is not None:
            yield from self._attempt(self._message())
            mark = yield from self._text(_BEGINS)
        self._new += self._inner.end()

    def _message(self) -> Steps[None]:
        """Read a message whose header has begun, and those that follow without an end between."""
        while True:
            header = yield from self._header()
            called = _CALLED.search(header)
            if called is not None:
                yield from self._called(self._known(called[1].removeprefix("functions.")))
                yield from self._space()
                for mark in _ENDS:
                    yield from self._comes(mark)
                self._drop()
                return
            channel = _CHANNEL_NAME.search(header)
            self._drop()
            tell = self._tellers.get(channel[1] if channel else "", self._say)
            mark_behind = yield from self._text((*_ENDS, *_BEGINS), tell)
            if mark_behind not in _BEGINS:
                self._drop()
                return

    def _called(self, name: str) -> Steps[None]:
        """Read the text of a call; an empty one is one without arguments."""
        yield from self._space()
        for mark in _ENDS:
            if (yield from self._comes(mark)):
                self._whole_call(name, "{}")
                return
        yield from self._call(name)

    def _header(self) -> Steps[str]:
        """Take the header's rest; all of it, with the mark or beginning that was taken before.

        One that was cut has said nothing.
        """
        while (at := self._rest.find(_MESSAGE, 0, LONGEST)) < 0:
            if len(self._rest) >= LONGEST:
                raise NotACallError
            if not (yield from self._more()):
                self._take(len(self._rest))
                self._drop()
                raise NotACallError
        self._take(at)
        header = "".join(self._taken)
        self._take(len(_MESSAGE))
        return header

    def _think(self, text: str) -> None:
        if text:
            self._new.append(Reasoning(text) if self._separate else Content(text))

    def _answer(self, text: str) -> None:
        self._new += self._inner.feed(text)
