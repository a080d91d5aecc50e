"""Messages of the OpenAI API as chat templates take them.

Owns the roles, what a message of each may have, and what becomes of parts, of calls and of earlier
reasoning.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from phloem.server.chat_template import check_messages
from phloem.server.http.errors import ApiError
from phloem.server.parsers.reading import json_object

_ROLES = ("system", "developer", "user", "assistant", "tool")
_MOST_MESSAGES = 10_000
_MOST_PARTS = 10_000
"""Of all messages together."""
_SHORT_ID = re.compile(r"[A-Za-z0-9]{9}")
_COMMON = {"role", "content", "name"}
_FIELDS = {
    "assistant": _COMMON | {"tool_calls", "reasoning_content", "refusal"},
    "tool": _COMMON | {"tool_call_id"},
}


class Arguments(dict[str, Any]):
    """A call's arguments, as templates use them: some write the object, some add its text to
    theirs.

    A model may have written what is no JSON object: its text is kept, and the object is empty.
    """

    def __init__(self, text: str) -> None:
        given = json_object(text) or {}
        super().__init__(given if _is_text(given) else {})
        self._text = text

    def __str__(self) -> str:
        return self._text

    def __add__(self, other: str) -> str:
        return self._text + other

    def __radd__(self, other: str) -> str:
        return other + self._text


def _is_text(value: Any) -> bool:
    """Whether all of a JSON value can be written; half of a surrogate pair cannot."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return False
    return True


def plain_messages(
    messages: Sequence[Any],
    *,
    developers: bool = False,
    reasoning: str = "reasoning_content",
    short_ids: bool = False,
) -> list[dict[str, Any]]:
    """Messages as chat templates take them: contents are strings, arguments of calls are objects.

    Text parts of one content are joined by line breaks. What a tool said has the tool's name.

    Args:
        messages: as they came.
        developers: whether the template knows their role; they speak as the system otherwise.
        reasoning: what the template calls an assistant's earlier reasoning.
        short_ids: whether it wants ids of calls to be nine letters and digits, as Mistral's do.

    Raises:
        ApiError, ValueError: naming the index of a message that is malformed, or that holds more
            than text.
    """
    if len(messages) > _MOST_MESSAGES:
        raise ApiError(
            f"there are {len(messages)} messages: give at most {_MOST_MESSAGES}", param="messages"
        )
    contents = [each.get("content") for each in messages if isinstance(each, dict)]
    parts = sum(len(content) for content in contents if isinstance(content, list))
    if parts > _MOST_PARTS:
        raise ApiError(
            f"the messages have {parts} content parts: give at most {_MOST_PARTS}", param="messages"
        )
    plain = [
        message | {"content": _plain_content(index, message)}
        if isinstance(message, dict)
        else message
        for index, message in enumerate(messages)
    ]
    names: dict[str, str] = {}
    """Of the functions that were called, by the ids of the calls."""
    made = []
    for index, message in enumerate(check_messages(plain)):
        taken = _taken(index, message, names)
        if taken["role"] == "developer" and not developers:
            taken["role"] = "system"
        if short_ids:
            _shorten_ids(taken)
        if "reasoning_content" in taken:
            taken[reasoning] = taken.pop("reasoning_content")
        made.append(taken)
    return made


def _refused(index: int, what: str) -> ApiError:
    return ApiError(f"message {index} {what}", param="messages")


def _plain_content(index: int, message: Mapping[str, Any]) -> Any:
    content, role = message.get("content"), message.get("role")
    if content and message.get("refusal"):
        raise _refused(index, "has a content and a refusal: give one of them")
    # An answer may be nothing but calls, reasoning or a refusal, or nothing at all; so may what a
    # tool says, in parts.
    if content in (None, "", []) and role == "assistant":
        return message.get("refusal") or ""
    if content == [] and role == "tool":
        return ""
    if not isinstance(content, list):
        return content
    texts = []
    for part in content:
        kind = part.get("type") if isinstance(part, Mapping) else None
        text = part.get(kind) if kind in ("text", "refusal") else None
        if not isinstance(text, str):
            raise _refused(
                index,
                f"has a content part of type {kind!r}: this model takes parts of type 'text', with "
                "a text that is a string",
            )
        texts.append(text)
    if not texts:
        raise _refused(index, "has no content: give text")
    return "\n".join(texts)


def _taken(index: int, message: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    """A message whose role and content are strings, as far as it is supported."""
    role = message["role"]
    if role not in _ROLES:
        raise _refused(index, f"has role {role[:100]!r}: roles here are {', '.join(_ROLES)}")
    for field in ("name", "tool_call_id", "reasoning_content", "refusal"):
        if not isinstance(message.get(field, ""), str):
            kind = type(message[field]).__name__
            raise _refused(index, f"has a {field} of type {kind}: give a string")
    fields = _FIELDS.get(role, _COMMON)
    # What clients send back of an answer has fields that are there but empty.
    extra = [name for name, value in message.items() if name not in fields and value]
    if extra:
        raise _refused(index, f"has {extra[0][:100]!r}, which is not supported: leave it out")
    taken = {name: value for name, value in message.items() if name in fields}
    taken.pop("refusal", None)
    if role == "tool":
        _name_tool(index, taken, names)
    if not taken.get("tool_calls", True):
        del taken["tool_calls"]
    if "tool_calls" in taken:
        taken["tool_calls"] = _calls(index, taken["tool_calls"], names)
    return taken


def _name_tool(index: int, message: dict[str, Any], names: Mapping[str, str]) -> None:
    id = message.get("tool_call_id")
    if id is None:
        raise _refused(index, "has no tool_call_id: give the id of the call that it answers")
    if id in names:
        message.setdefault("name", names[id])


def _calls(index: int, given: Any, names: dict[str, str]) -> list[dict[str, Any]]:
    if not isinstance(given, list):
        raise _refused(index, f"has tool_calls of type {type(given).__name__}: give a list")
    return [_call(index, call, names) for call in given]


def _call(index: int, call: Any, names: dict[str, str]) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    id = call.get("id", "") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(name, str) or not isinstance(id, str):
        raise _refused(
            index,
            "has a call that is none: give objects like "
            '{"id": ..., "type": "function", "function": {"name": ..., "arguments": ...}}',
        )
    if call.get("type", "function") != "function":
        raise _refused(index, f"has a call of type {str(call['type'])[:100]!r}: give functions")
    given = function.get("arguments") or "{}"
    if not isinstance(given, str | dict):
        kind = type(given).__name__
        raise _refused(index, f"has arguments of {name[:100]!r} of type {kind}: give their text")
    arguments = Arguments(given if isinstance(given, str) else json.dumps(given))
    names[id] = name
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _shorten_ids(message: dict[str, Any]) -> None:
    for call in message.get("tool_calls", ()):
        call["id"] = _short(call["id"])
    if "tool_call_id" in message:
        message["tool_call_id"] = _short(message["tool_call_id"])


def _short(id: str) -> str:
    if _SHORT_ID.fullmatch(id):
        return id
    return hashlib.sha256(id.encode()).hexdigest()[:9]
