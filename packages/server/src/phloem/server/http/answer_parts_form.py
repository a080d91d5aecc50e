"""Chat answers that have more than content: OpenAI's `tool_calls`, and `reasoning_content`."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from phloem.server.http.answer_parts import AnswerParts, ChatHead
from phloem.server.http.errors import raise_if_failed
from phloem.server.http.forms import Head, OpenAIForm, finish_fields
from phloem.server.http.logprobs import chat_logprobs
from phloem.server.http.sse import json_line
from phloem.server.messages import TextNews
from phloem.server.parsers import CallArguments, CallBegin, Content, Part, Reasoning


class PartsForm(OpenAIForm):
    """As `ChatForm`, for answers that are read by a parser; `arguments` are JSON text.

    An answer that was cut has its last call as far as it came; its reason is then what cut it. What
    is new of a choice goes out as one chunk, so that each of its logprobs is in one.
    """

    def __init__(self, head: ChatHead) -> None:
        super().__init__(
            Head(head.id, "chat.completion", head.model),
            "chat.completion.chunk",
            head.n,
            head.include_usage,
        )
        self._names = head.names
        self._prompt_ids = head.prompts[0] if head.token_ids else None
        self._new_parts: Callable[[], AnswerParts] = head.new_parts
        self._parts: dict[int, AnswerParts] = {}
        """Of the choices that have begun."""

    def chunk(self, index: int, news: TextNews) -> bytes:
        """What is new of a choice."""
        raise_if_failed(news.finish)
        events = []
        parts = self._parts.get(index)
        if parts is None:
            parts = self._parts[index] = self._new_parts()
            prompt = self._ids(prompt_token_ids=self._prompt_ids)
            events.append(self._event(index, {"role": "assistant", "content": ""}, **prompt))
        delta = _delta(parts.take(news))
        logprobs = self._logprobs(news)
        ids = self._ids(token_ids=news.token_ids) if news.token_ids else {}
        if delta or logprobs or ids:
            events.append(self._event(index, delta, logprobs=logprobs, **ids))
        if news.finish is not None:
            end = {"delta": {}, "logprobs": None} | _finish_fields(news, parts)
            events.append(self._open(index) + json_line(end)[1:-1] + self._ending(index, news))
        return b"".join(events)

    def _event(self, index: int, delta: dict[str, Any], **fields: Any) -> bytes:
        choice = {"delta": delta, "logprobs": None, "finish_reason": None} | fields
        return self._open(index) + json_line(choice)[1:-1] + self._closing

    def _open(self, index: int) -> bytes:
        """A chunk up to what its choice has beside the index."""
        return self._opening + str(index).encode() + b","

    def _choice(self, index: int, output: TextNews) -> dict[str, Any]:
        parts = self._parts[index] = self._new_parts()
        said = _delta(parts.take(output))
        # No content is null beside calls alone: clients send the message back as it is.
        nothing = None if "tool_calls" in said else ""
        message: dict[str, Any] = {"role": "assistant", "content": nothing, "refusal": None} | said
        for call in message.get("tool_calls", ()):
            del call["index"]
        choice = {"index": index, "message": message, "logprobs": self._logprobs(output)}
        ids = self._ids(token_ids=output.token_ids, prompt_token_ids=self._prompt_ids)
        return choice | ids | _finish_fields(output, parts)

    def _ids(self, **ids: Sequence[int] | None) -> dict[str, Any]:
        """Fields with token ids, where those are wanted."""
        return ids if self._prompt_ids is not None else {}

    def _reasoning_tokens(self, index: int) -> int:
        return self._parts[index].reasoning_tokens

    def _logprobs(self, news: TextNews) -> dict[str, Any] | None:
        if self._names is None or news.logprobs is None:
            return None
        return chat_logprobs(self._names, news)


def _finish_fields(news: TextNews, parts: AnswerParts) -> dict[str, Any]:
    """As `finish_fields`, of an answer that was read to its end."""
    fields = finish_fields(news)
    return fields | {"finish_reason": parts.finish_reason(fields["finish_reason"])}


def _delta(parts: Iterable[Part]) -> dict[str, Any]:
    """Parts as the fields of one message, each text joined."""
    fields: dict[str, Any] = {}
    calls: dict[int, dict[str, Any]] = {}
    for part in parts:
        if isinstance(part, Content):
            fields["content"] = fields.get("content", "") + part.text
        elif isinstance(part, Reasoning):
            fields["reasoning_content"] = fields.get("reasoning_content", "") + part.text
        elif isinstance(part, CallBegin):
            calls[part.index] = {
                "index": part.index,
                "id": f"call_{uuid.uuid4().hex[:24]}",
                "type": "function",
                "function": {"name": part.name, "arguments": ""},
            }
        elif isinstance(part, CallArguments):
            call = calls.setdefault(
                part.index, {"index": part.index, "function": {"arguments": ""}}
            )
            call["function"]["arguments"] += part.text
    return fields | ({"tool_calls": list(calls.values())} if calls else {})
