"""Reading traffic: one JSON object a line, in the forms that real logs have.

Owns which fields are understood and what a line must not be. A prompt is `input_ids`, `token_ids`
or `prompt_token_ids` (ids), `prompt` (a text, ids, or a list of either: several requests), `text`,
or `messages` (OpenAI style), at the top of the object or in its `body` (OpenAI batch files). What
was generated, if known, is `output_ids`, `output_token_ids`, `output`, `completion` or `response`.
Requests share nothing across different `model`s, `namespace`s or `cache_salt`s.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from ..key import Namespace, TokenId

_IDS: Final = ("input_ids", "token_ids", "prompt_token_ids")
_OUTPUTS: Final = ("output_ids", "output_token_ids", "output", "completion", "response")
_BODIES: Final = ("body", "request")

Prompt = str | list[TokenId]


class Tokenizer(Protocol):
    """Turns texts and chats into token ids."""

    def encode(self, text: str) -> list[TokenId]:
        """The ids of a prompt."""
        ...

    def encode_chat(self, messages: Sequence[Any], tools: Sequence[Any] | None) -> list[TokenId]:
        """The ids of a chat, as the model's template renders it."""
        ...

    def encode_output(self, text: str) -> list[TokenId]:
        """The ids of generated text, which begins no sequence."""
        ...


@dataclass(frozen=True, slots=True)
class LoggedRequest:
    """What a line of the log says: prompt and output are both ids or both text."""

    prompt: Prompt
    namespace: Namespace
    output: Prompt


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that is no request, and why."""

    line: int
    reason: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.reason}"


class RequestReader:
    """Reads requests until the lines end.

    Without a tokenizer the first good line decides whether this log holds texts or ids, since the
    two cannot be compared; lines of the other kind are bad lines. With one, everything becomes ids.
    """

    def __init__(self, tokenizer: Tokenizer | None = None) -> None:
        self._tokenizer = tokenizer
        self._kind: type | None = None if tokenizer is None else list

    @property
    def counts_text(self) -> bool:
        """Whether the log turned out to hold texts that nobody tokenizes."""
        return self._kind is str

    def read(self, lines: Iterable[str]) -> Iterator[LoggedRequest | BadLine]:
        """The requests of a log, or what is wrong with a line; empty lines are passed over."""
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                requests = [*self._requests(_object(line))]
            except ValueError as error:
                yield BadLine(number, str(error))
            else:
                yield from requests

    def _requests(self, fields: dict[str, Any]) -> Iterator[LoggedRequest]:
        for name in _BODIES:
            if isinstance(fields.get(name), dict):
                fields = {**fields, **fields[name]}
        namespace = _namespace(fields)
        output = self._output(fields)
        for prompt in self._prompts(fields):
            self._agree(prompt)
            if output is not None and type(output) is not type(prompt):
                raise ValueError(
                    "one of prompt and output is a text and the other ids: give --tokenizer"
                )
            yield LoggedRequest(prompt, namespace, output or type(prompt)())

    def _prompts(self, fields: dict[str, Any]) -> Iterable[Prompt]:
        for name in _IDS:
            if name in fields:
                return [_ids(name, fields[name])]
        if "messages" in fields:
            return [self._chat(fields["messages"], fields.get("tools"))]
        for name in ("prompt", "text"):
            if name in fields:
                return self._texts(name, fields[name])
        raise ValueError(
            f"none of {', '.join(_IDS)}, messages, prompt, text is there, only "
            f"{', '.join(map(repr, fields)) or 'nothing'}"
        )

    def _texts(self, name: str, value: Any) -> list[Prompt]:
        """A text, ids, or a list of either."""
        if isinstance(value, str):
            return [self._encode(value)]
        if isinstance(value, list) and value and isinstance(value[0], (str, list)):
            return [
                self._encode(part) if isinstance(part, str) else _ids(name, part) for part in value
            ]
        return [_ids(name, value)]

    def _encode(self, text: str) -> Prompt:
        return text if self._tokenizer is None else self._tokenizer.encode(text)

    def _chat(self, messages: Any, tools: Any) -> Prompt:
        if not isinstance(messages, list) or not all(isinstance(m, dict) for m in messages):
            raise ValueError("messages is no list of objects with role and content")
        if tools is not None and not isinstance(tools, list):
            raise ValueError("tools is no list")
        if self._tokenizer is None:
            return plain_chat(messages, tools)
        return self._tokenizer.encode_chat(messages, tools)

    def _output(self, fields: dict[str, Any]) -> Prompt | None:
        for name in _OUTPUTS:
            value = fields.get(name)
            if isinstance(value, str):
                return value if self._tokenizer is None else self._tokenizer.encode_output(value)
            if isinstance(value, list):
                return _ids(name, value)
        return None

    def _agree(self, prompt: Prompt) -> None:
        if self._kind is None:
            self._kind = type(prompt)
        elif type(prompt) is not self._kind:
            held, here = ("texts", "ids") if self._kind is str else ("ids", "a text")
            raise ValueError(
                f"it has {here} in a log of {held}, which cannot be compared: give --tokenizer"
            )


def plain_chat(messages: Sequence[dict[str, Any]], tools: Sequence[Any] | None) -> str:
    """A chat as text in a neutral template, for want of the model's own.

    Raises `ValueError` for content that is neither text nor a list of parts.
    """
    parts = [] if not tools else [f"<|tools|>\n{json.dumps(tools, ensure_ascii=False)}\n"]
    for message in messages:
        content = _content(message.get("content"))
        calls = message.get("tool_calls")
        called = "" if not calls else json.dumps(calls, ensure_ascii=False)
        parts.append(f"<|{message.get('role', 'user')}|>\n{content}{called}\n")
    return "".join(parts)


def _content(content: Any) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise ValueError(f"a message's content is a {type(content).__name__}: text or parts")
    return "".join(
        part["text"]
        if isinstance(part, dict) and isinstance(part.get("text"), str)
        else json.dumps(part, ensure_ascii=False)
        for part in content
    )


def _object(line: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is no JSON: {error}") from None
    if not isinstance(value, dict):
        raise ValueError(f"it is a JSON {type(value).__name__}, not an object")
    return value


def _ids(name: str, value: Any) -> list[TokenId]:
    if not isinstance(value, list):
        raise ValueError(f"{name} is a {type(value).__name__}: a list of token ids is needed")
    for token in value:
        if type(token) is not int or not -(2**31) <= token < 2**31:
            raise ValueError(f"{name} holds {token!r}, which is no token id (an int32)")
    return value


def _namespace(fields: dict[str, Any]) -> Namespace:
    """Everything that keeps two requests from sharing, as one tuple."""
    parts: list[Namespace] = []
    for name in ("model", "namespace", "cache_salt"):
        value = fields.get(name)
        if value is not None:
            parts.append((name, _frozen(name, value)))
    return tuple(parts)


def _frozen(name: str, value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_frozen(name, part) for part in value)
    if isinstance(value, (str, int)) and not isinstance(value, bool):
        return value
    raise ValueError(f"{name} holds a {type(value).__name__}: text, an int or a list of these")
