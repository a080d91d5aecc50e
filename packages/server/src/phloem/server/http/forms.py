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

from phloem.server.http.errors import ApiError, raise_if_failed
from phloem.server.http.sse import DONE, event, failure_event, json_line
from phloem.server.http.truth import truth_fields
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
        self._prompt = self._cached = self._completion = self._reasoning = 0

    def add(self, index: int, last: TextNews, reasoning_tokens: int = 0) -> None:
        """Take in a sequence's end; of its tokens, so many were reasoning."""
        if index % self._n == 0:
            self._prompt += last.prompt_tokens
            self._cached += last.cached_tokens
        self._completion += last.completion_tokens
        self._reasoning += reasoning_tokens

    def fields(self) -> dict[str, Any]:
        """OpenAI's usage object."""
        return {
            "prompt_tokens": self._prompt,
            "completion_tokens": self._completion,
            "total_tokens": self._prompt + self._completion,
            "prompt_tokens_details": {"cached_tokens": self._cached},
            "completion_tokens_details": {"reasoning_tokens": self._reasoning},
        }


class OpenAIForm(ABC):
    """The part of a `Form` that chats and completions share.

    What a sequence tells of its making stands at the top of the answer, or of the chunk that ends
    it, where it is the only one; else in its choice.
    """

    def __init__(
        self,
        head: Head,
        chunk_object: str,
        n: int,
        include_usage: bool,
        sequences: int | None = None,
    ) -> None:
        """`n` sequences of each prompt, `sequences` in all; None: of one prompt."""
        self._head = head
        self._chunk_head = Head(head.id, chunk_object, head.model, head.created)
        self._opening = self._chunk_head.opening()
        self._rest = b',"usage":null}\n\n' if include_usage else b"}\n\n"
        self._closing = b"}]" + self._rest
        """A chunk's end, from behind the choice's last field."""
        self._alone = (n if sequences is None else sequences) == 1
        self._usage = Usage(n)
        self._include_usage = include_usage

    def tail(self) -> bytes:
        """The chunk with the usage, if it was asked for, and the mark."""
        if not self._include_usage:
            return DONE
        fields = {"choices": [], "usage": self._usage.fields()}
        return event(self._chunk_head.fields() | fields) + DONE

    def failure(self, error: ApiError) -> bytes:
        """An error object."""
        return failure_event(error)

    def whole(self, outputs: Sequence[TextNews]) -> bytes:
        """The answer at once."""
        for output in outputs:
            raise_if_failed(output.finish)
        choices = []
        for index, output in enumerate(outputs):
            choice = self._choice(index, output)
            self._usage.add(index, output, self._reasoning_tokens(index))
            choices.append(choice if self._alone else choice | truth_fields(output))
        return self._body(choices, outputs)

    def _body(self, choices: Sequence[dict[str, Any]], outputs: Sequence[TextNews]) -> bytes:
        """The whole answer with its choices, one for each sequence."""
        truth = truth_fields(outputs[0]) if self._alone else {}
        return msgspec.json.encode(
            self._head.fields() | {"choices": choices, "usage": self._usage.fields()} | truth
        )

    def _ending(self, index: int, last: TextNews) -> bytes:
        """The end of the chunk that ends a choice, from behind the choice's last field; counts its
        tokens.
        """
        self._usage.add(index, last, self._reasoning_tokens(index))
        truth = b"," + json_line(truth_fields(last))[1:-1]
        if self._alone:
            return b"}]" + truth + self._rest
        return truth + self._closing

    def _reasoning_tokens(self, index: int) -> int:
        """Tokens of a choice, as far as it has come, that were reasoning."""
        return 0

    @abstractmethod
    def _choice(self, index: int, output: TextNews) -> dict[str, Any]:
        """A choice of a whole answer."""


def finish_fields(news: TextNews) -> dict[str, Any]:
    """How a choice ended; `matched_stop` is the stop string or token id that ended it, if one did.

    It is an extension of OpenAI's API.
    """
    assert news.finish is not None, f"{news.rid} has not ended"
    return {"finish_reason": news.finish.type, "matched_stop": news.finish.matched}
