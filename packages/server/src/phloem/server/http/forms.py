"""What OpenAI's answers have in common: their head, their usage, and pre-rendered chunks.

A chunk's bytes are constant but for its text: the constant parts are made once for each choice, so
that a token costs one JSON string and one join.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from phloem.server.http.errors import raise_if_failed
from phloem.server.http.sse import event, json_line
from phloem.server.messages import TextNews


@dataclass(frozen=True, slots=True)
class Head:
    """One id, time and model for all parts of an answer."""

    id: str
    object: str
    model: str
    created: int = field(default_factory=lambda: int(time.time()))

    def fields(self) -> dict[str, Any]:
        """As JSON fields."""
        return {
            "id": self.id,
            "object": self.object,
            "created": self.created,
            "model": self.model,
        }

    def opening(self) -> bytes:
        """A chunk's event up to the choice's index."""
        return b"data: " + json_line(self.fields())[:-1] + b',"choices":[{"index":'


class Usage:
    """Counts the tokens of a request whose prompts have `n` sequences each.

    A prompt counts once. Its cached tokens are those that its first sequence found: what that one
    left for its siblings is no hit that a client would know of.
    """

    def __init__(self, n: int) -> None:
        self._n = n
        self._prompt = self._cached = self._completion = 0

    def add(self, index: int, last: TextNews) -> None:
        """Take in a sequence's end."""
        if index % self._n == 0:
            self._prompt += last.prompt_tokens
            self._cached += last.cached_tokens
        self._completion += last.completion_tokens

    def fields(self) -> dict[str, Any]:
        """OpenAI's usage object."""
        return {
            "prompt_tokens": self._prompt,
            "completion_tokens": self._completion,
            "total_tokens": self._prompt + self._completion,
            "prompt_tokens_details": {"cached_tokens": self._cached},
        }


class OpenAIForm(ABC):
    """The part of a `Form` that chats and completions share."""

    def __init__(self, head: Head, chunk_object: str, n: int, include_usage: bool) -> None:
        self._head = head
        self._chunk_head = Head(head.id, chunk_object, head.model, head.created)
        self._opening = self._chunk_head.opening()
        self._closing = b'}],"usage":null}\n\n' if include_usage else b"}]}\n\n"
        """A chunk's end, from behind the choice's last field."""
        self._usage = Usage(n)
        self._include_usage = include_usage

    def tail(self) -> bytes:
        """The chunk with the usage, if it was asked for."""
        if not self._include_usage:
            return b""
        return event(self._chunk_head.fields() | {"choices": [], "usage": self._usage.fields()})

    def whole(self, outputs: Sequence[TextNews]) -> bytes:
        """The answer at once."""
        for index, output in enumerate(outputs):
            raise_if_failed(output.finish)
            self._usage.add(index, output)
        choices = [self._choice(index, output) for index, output in enumerate(outputs)]
        return msgspec.json.encode(
            self._head.fields() | {"choices": choices, "usage": self._usage.fields()}
        )

    @abstractmethod
    def _choice(self, index: int, output: TextNews) -> dict[str, Any]:
        """A choice of a whole answer."""


def finish_fields(news: TextNews) -> dict[str, Any]:
    """How a choice ended; `matched_stop` is the stop string or token id that ended it, if one did.

    It is an extension of OpenAI's API.
    """
    assert news.finish is not None, f"{news.rid} has not ended"
    return {"finish_reason": news.finish.type, "matched_stop": news.finish.matched}
