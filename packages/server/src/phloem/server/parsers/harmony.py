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

FINAL = f"{_CHANNEL}final{_MESSAGE}"
"""Begins the answer itself."""


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
        """`inner` reads the content; without `separate` reasoning is content, told as such."""
        super().__init__(tools)
        self._inner = inner or PlainText()
        self._separate = separate

    def _read(self) -> Steps[None]:
        # What stands before is the prompt's: a header may go on with the recipient.
        mark: str | None = ""
        yield from self._space()
        if not (yield from self._comes("to=functions.")):
            text = "".join(self._taken)
            self._drop()
            self._answer(text)
            mark = yield from self._text(_BEGINS, self._answer)
        while mark is not None:
            yield from self._attempt_message()
            mark = yield from self._text(_BEGINS, self._answer)
        self._new += self._inner.end()

    def _attempt_message(self) -> Steps[None]:
        try:
            yield from self._message()
        except NotACallError:
            text = "".join(self._taken)
            self._drop()
            self._answer(text)

    def _message(self) -> Steps[None]:
        """Read a message whose header has begun, and those that follow without an end between."""
        while True:
            header = yield from self._header()
            called = _CALLED.search(header)
            if called is not None:
                namespace, _, name = called[1].partition(".")
                self._known(name if namespace == "functions" else "")
                yield from self._call(name)
                yield from self._space()
                for mark in _ENDS:
                    yield from self._comes(mark)
                self._drop()
                return
            channel = _CHANNEL_NAME.search(header)
            thinks = channel is not None and channel[1] == "analysis"
            self._drop()
            tell = self._think if thinks else self._answer
            mark_behind = yield from self._text((*_ENDS, *_BEGINS), tell)
            if mark_behind not in _BEGINS:
                self._drop()
                return

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
