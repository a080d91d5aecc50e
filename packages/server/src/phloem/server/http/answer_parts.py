"""What a sequence of a chat's answer says, whatever endpoint tells it: reasoning, content, calls.

Owns one sequence's parser and what follows from its parts. How they look on the wire is a `Form`'s.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from phloem.server.http.logprobs import TokenId, TokenNames
from phloem.server.messages import Finish
from phloem.server.parsers import (
    CallArguments,
    CallBegin,
    CallEnd,
    OutputParser,
    Part,
    Reasoning,
)


@dataclass(frozen=True, slots=True)
class Reading:
    """How the sequences of one answer are read."""

    new_parser: Callable[[], OutputParser]
    names: TokenNames
    marks: frozenset[TokenId] = frozenset()
    """Tokens that are marks of the parser's notation."""
    is_plain: bool = False
    """Whether all text is content anyway."""
    call_is_an_end: bool = True
    """Whether an answer ends by its calls; one that had to call a named function does not, as
    OpenAI has it."""
    one_call: bool = False
    """Whether calls after the first are left out."""
    stream_reasoning: bool = True
    """Whether reasoning is told as it comes, or all of it at its end."""


class HasText(Protocol):
    """What of news is read: a `TextNews`, or a part of one."""

    @property
    def text(self) -> str:
        """What is new of the text."""
        ...

    @property
    def token_ids(self) -> list[int]:
        """The tokens that are new."""
        ...

    @property
    def finish(self) -> Finish | None:
        """Why it ended, with the last."""
        ...


class AnswerParts:
    """The parts of one sequence of an answer, as its news come."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._parser = reading.new_parser()
        self._held: list[str] = []
        """Reasoning to be told at its end."""
        self._begun = self._ended = 0
        """Calls."""
        self._thought_bytes = 0
        self._ids: list[TokenId] = []

    def take(self, news: HasText) -> list[Part]:
        """What more of the output says; with the last news, all that was held back too."""
        self._ids += news.token_ids
        parts = self._parser.feed(news.text)
        if news.finish is not None:
            parts += self._parser.end()
        told: list[Part] = []
        for part in parts:
            self._note(part, told)
        if news.finish is not None:
            self._release(told)
        return told

    @property
    def reasoning_tokens(self) -> int:
        """How many tokens the reasoning takes up, without its marks: counted by their bytes, so
        that it is one number however the news came.
        """
        left, count = self._thought_bytes, 0
        names, marks = self._reading.names, self._reading.marks
        for token in self._ids:
            if left <= 0:
                break
            if token not in marks and token not in names.special_ids:
                left -= len(names.bytes_of(token))
                count += 1
        return count

    def finish_reason(self, ended: str) -> str:
        """How the answer ended, as OpenAI calls it: by its calls if they are whole, or else by what
        `ended` it, such as "stop" and "length".
        """
        called = self._begun > 0 and self._begun == self._ended
        by_calls = called and self._reading.call_is_an_end and ended == "stop"
        return "tool_calls" if by_calls else ended

    def _note(self, part: Part, told: list[Part]) -> None:
        if isinstance(part, Reasoning):
            self._thought_bytes += len(part.text.encode())
            if not self._reading.stream_reasoning:
                self._held.append(part.text)
                return
        elif isinstance(part, CallBegin | CallArguments | CallEnd):
            if self._reading.one_call and part.index > 0:
                return
            self._begun += isinstance(part, CallBegin)
            self._ended += isinstance(part, CallEnd)
        self._release(told)
        told.append(part)

    def _release(self, told: list[Part]) -> None:
        if self._held:
            told.append(Reasoning("".join(self._held)))
            self._held = []


@dataclass(frozen=True, slots=True)
class ChatHead:
    """What a chat's `Form` is made of."""

    id: str
    model: str
    n: int
    include_usage: bool
    names: TokenNames | None
    """Where logprobs are wanted."""
    prompts: list[list[int]]
    """The ids of the prompt: one for all `n` sequences."""
    new_parts: Callable[[], AnswerParts]
    """For each sequence its own."""
    plain: bool
    """Whether all text is content anyway."""
    token_ids: bool = False
    """Whether the answer has the ids of the prompt and of the output."""
