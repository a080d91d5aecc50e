"""`POST /v1/chat/completions`: messages to a prompt, and an answer to OpenAI's chat objects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from phloem.server.chat_template import check_messages
from phloem.server.http.errors import ApiError, raise_if_failed
from phloem.server.http.forms import Head, OpenAIForm, finish_fields
from phloem.server.http.logprobs import TokenNames, chat_logprobs
from phloem.server.http.sse import json_line
from phloem.server.messages import TextNews

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
"""Roles, and what templates call them."""
_MOST_MESSAGES = 10_000
_FIELDS = {"role", "content", "name"}


class ChatForm(OpenAIForm):
    """Answers as `chat.completion` objects, streamed as `chat.completion.chunk`.

    The first chunk of a choice names the role, the last one how it ended.
    """

    def __init__(
        self, id: str, model: str, n: int, include_usage: bool, names: TokenNames | None
    ) -> None:
        """`names` where logprobs are wanted."""
        super().__init__(
            Head(id, "chat.completion", model), "chat.completion.chunk", n, include_usage
        )
        self._names = names
        self._before: dict[int, bytes] = {}
        """What stands before the text, for each choice that has begun."""
        self._after = b'},"logprobs":null,"finish_reason":null' + self._closing

    def chunk(self, index: int, news: TextNews) -> bytes:
        """What is new of a choice."""
        if news.finish is None and news.logprobs is None and index in self._before:
            if not news.text:
                return b""
            return b"".join((self._before[index], json_line(news.text), self._after))
        return self._rare_chunk(index, news)

    def _rare_chunk(self, index: int, news: TextNews) -> bytes:
        """With a choice's begin, its end, or logprobs."""
        raise_if_failed(news.finish)
        parts = []
        opening = self._opening + str(index).encode()
        if index not in self._before:
            self._before[index] = opening + b',"delta":{"content":'
            parts += [opening, b',"delta":{"role":"assistant","content":""', self._after]
        if news.logprobs is not None and self._names is not None:
            logprobs = json_line(chat_logprobs(self._names, news))
            parts += [self._before[index], json_line(news.text), b'},"logprobs":', logprobs]
            parts += [b',"finish_reason":null', self._closing]
        elif news.text:
            parts += [self._before[index], json_line(news.text), self._after]
        if news.finish is not None:
            end = json_line({"delta": {}, "logprobs": None} | finish_fields(news))
            parts += [opening, b",", end[1:-1], self._ending(index, news)]
        return b"".join(parts)

    def _choice(self, index: int, output: TextNews) -> dict[str, Any]:
        return {
            "index": index,
            "message": {"role": "assistant", "content": output.text, "refusal": None},
            "logprobs": None if self._names is None else chat_logprobs(self._names, output),
        } | finish_fields(output)


def plain_messages(messages: Sequence[Any]) -> list[dict[str, Any]]:
    """Messages as chat templates take them: contents are strings, developers speak as the system.

    Text parts of one content are joined by line breaks.

    Raises:
        ApiError, ValueError: naming the index of a message that is malformed, or that holds more
            than text.
    """
    if len(messages) > _MOST_MESSAGES:
        raise ApiError(
            f"there are {len(messages)} messages: give at most {_MOST_MESSAGES}", param="messages"
        )
    plain = [
        message | {"content": _plain_content(index, message["content"])}
        if isinstance(message, dict) and isinstance(message.get("content"), list)
        else message
        for index, message in enumerate(messages)
    ]
    return [_supported(index, message) for index, message in enumerate(check_messages(plain))]


def _plain_content(index: int, parts: Sequence[Any]) -> str:
    texts = []
    for part in parts:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind != "text" or not isinstance(part.get("text"), str):
            raise ApiError(
                f"message {index} has a content part of type {kind!r}: this model takes parts of "
                "type 'text', with a text that is a string",
                param="messages",
            )
        texts.append(part["text"])
    if not texts:
        raise ApiError(f"message {index} has no content: give text", param="messages")
    return "\n".join(texts)


def _supported(index: int, message: dict[str, Any]) -> dict[str, Any]:
    role = message["role"]
    if role not in _ROLES:
        raise ApiError(
            f"message {index} has role {role[:100]!r}: roles here are {', '.join(_ROLES)}",
            param="messages",
        )
    if not isinstance(message.get("name", ""), str):
        kind = type(message["name"]).__name__
        raise ApiError(
            f"message {index} has a name of type {kind}: give a string", param="messages"
        )
    # What clients send back of an answer has fields that are there but empty.
    extra = [name for name, value in message.items() if name not in _FIELDS and value]
    if extra:
        raise ApiError(
            f"message {index} has {extra[0][:100]!r}, which is not supported: leave it out",
            param="messages",
        )
    return {name: message[name] for name in message if name in _FIELDS} | {"role": _ROLES[role]}
