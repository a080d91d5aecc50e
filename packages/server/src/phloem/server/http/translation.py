"""A chat put together piece by piece: what the messages of other chat-like APIs become.

Owns the form of messages that `phloem.server.http.chat_protocol` takes, and which pieces are one
turn of the assistant. What pieces an API has is its own affair.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from phloem.server.http.errors import ApiError

_SHOWN = 100
"""Characters of a client's words that an error quotes."""


@dataclass
class Conversation:
    """Messages so far. Pieces of the assistant's that follow each other are one message."""

    messages: list[dict[str, Any]] = field(default_factory=list)

    def say(self, role: str, texts: Sequence[str]) -> None:
        """Texts of anybody's."""
        parts = [{"type": "text", "text": text} for text in texts]
        if role == "assistant":
            turn = self._turn()
            turn["content"] = [*(turn["content"] or ()), *parts]
        else:
            self.messages.append({"role": role, "content": parts})

    def think(self, text: str) -> None:
        """What the assistant thought."""
        turn = self._turn()
        before = turn.get("reasoning_content")
        turn["reasoning_content"] = text if before is None else f"{before}\n{text}"

    def call(self, id: str, name: str, arguments: str) -> None:
        """A call of the assistant's; `arguments` is the JSON text of an object."""
        function = {"name": name, "arguments": arguments}
        call = {"id": id, "type": "function", "function": function}
        self._turn().setdefault("tool_calls", []).append(call)

    def result(self, id: str, text: str) -> None:
        """What a call gave."""
        self.messages.append({"role": "tool", "tool_call_id": id, "content": text})

    def _turn(self) -> dict[str, Any]:
        if not self.messages or self.messages[-1]["role"] != "assistant":
            self.messages.append({"role": "assistant", "content": ""})
        return self.messages[-1]


def texts_of(content: Any, kinds: Mapping[str, str], where: str, param: str) -> list[str]:
    """The texts of a content, which is one text or a list of parts.

    Args:
        content: as it came.
        kinds: types of parts that are texts, each with the field that has it.
        where: what an error calls the content.
        param: the field that an error names.

    Raises:
        ApiError: it is malformed, or has a part of another type.
    """
    if isinstance(content, str):
        return [content]
    if not isinstance(content, list):
        raise ApiError(f"{where} is no text and no list of parts: give either", param=param)
    texts = []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if not isinstance(kind, str) or kind not in kinds:
            raise ApiError(
                f"{where} has a part of type {shown(kind)}, which is not served here: parts are of "
                f"type {' or '.join(kinds)}",
                param=param,
                code="unsupported_content",
            )
        texts.append(text_in(part, kinds[kind], f"a part of {where}", param))
    return texts


def text_in(piece: Mapping[str, Any], name: str, where: str, param: str) -> str:
    """A field of a piece that has to be a text.

    Raises:
        ApiError: it is none.
    """
    text = piece.get(name)
    if not isinstance(text, str):
        raise ApiError(f"{where} has no {name}: give a string", param=param)
    return text


def shown(value: Any) -> str:
    """A client's value as an error quotes it."""
    return f"{value!r:.{_SHOWN}}"


@contextmanager
def speaking_of(names: Mapping[str, str]) -> Iterator[None]:
    """Within it, errors call the fields of a chat as another API does.

    Raises:
        ApiError: as the ones within it, renamed.
    """
    try:
        yield
    except ApiError as error:
        param = error.param
        if param is None or param not in names:
            raise
        raise ApiError(
            re.sub(rf"\b{re.escape(param)}\b", names[param], str(error)),
            error.status,
            param=names[param],
            code=error.code,
            retry_after=error.retry_after,
        ) from error
