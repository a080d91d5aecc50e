"""From a request for a message to that for a chat.

Owns what content blocks and Anthropic's fields come to in a chat, and where in a prompt a mark for
the cache stands. What a chat comes to is the affair of `phloem.server.http.chat_request`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import msgspec

from phloem.server.http.anthropic.protocol import AS_IN_CHATS, CountRequest, MessagesRequest, Tool
from phloem.server.http.chat_prompt import THINKING
from phloem.server.http.chat_protocol import ChatRequest, FunctionSpec, ToolSpec
from phloem.server.http.errors import ApiError
from phloem.server.http.translation import Conversation, shown, text_in, texts_of

CHAT_NAMES = {
    "max_thinking_tokens": "thinking.budget_tokens",
    "reasoning_effort": "output_config.effort",
    "response_format": "output_config.format",
    "stop": "stop_sequences",
}
"""What a chat's fields are called here."""

_TEXT = {"text": "text"}
_ROLES = ("user", "assistant", "system")


def chat_of(request: CountRequest) -> ChatRequest:
    """The chat that a request asks for.

    Raises:
        ApiError: something in it is malformed, or not served.
    """
    fields: dict[str, Any] = {"input_ids": request.input_ids}
    if isinstance(request, MessagesRequest):
        fields = _sampling(request)
    choice = request.tool_choice
    config = request.output_config
    if config is not None and config.effort is not None:
        fields["reasoning_effort"] = config.effort
    if config is not None and config.format is not None:
        fields["response_format"] = _format(config.format)
    messages = None
    if request.messages is not None:
        messages = messages_of(request.system, request.messages)
    elif request.system:
        raise ApiError("input_ids are all of the prompt: leave out system", param="system")
    if messages and messages[-1]["role"] == "assistant":
        # It is what the answer begins with.
        fields |= {"continue_final_message": True, "add_generation_prompt": False}
    return ChatRequest(
        messages=messages,
        tools=[_tool(tool, index) for index, tool in enumerate(request.tools or ())] or None,
        tool_choice=None if choice is None else _choice(request),
        parallel_tool_calls=not (choice is not None and choice.disable_parallel_tool_use),
        **fields,
        **_thinking(request),
    )


def messages_of(system: str | list[Any] | None, messages: Sequence[Any]) -> list[dict[str, Any]]:
    """Messages as a chat has them.

    Raises:
        ApiError: one is malformed, or has a block that is not served.
    """
    conversation = Conversation()
    if system:
        conversation.say("system", texts_of(system, _TEXT, "system", "system"))
    for role, group in groupby(enumerate(messages), lambda each: _role(*each)):
        # Turns of one role that follow each other are one.
        blocks = [block for index, message in group for block in _blocks(message, index)]
        _ADDERS[role](conversation, blocks)
    return conversation.messages


Placed = tuple[dict[str, Any], str]
"""A block, and what an error calls it."""


def _role(index: int, message: Any) -> str:
    role = message.get("role") if isinstance(message, dict) else None
    if role not in _ROLES:
        raise ApiError(
            f"message {index} has role {shown(role)}: roles are {', '.join(_ROLES)}",
            param="messages",
        )
    return str(role)


def _blocks(message: Mapping[str, Any], index: int) -> list[Placed]:
    content = message.get("content")
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    if not isinstance(content, list) or not all(isinstance(block, dict) for block in content):
        raise ApiError(
            f"message {index} has a content that is no text and no list of blocks: give either",
            param="messages",
        )
    return [(block, f"block {place} of message {index}") for place, block in enumerate(content)]


def _add_user(conversation: Conversation, blocks: Sequence[Placed]) -> None:
    texts: list[str] = []
    for block, where in blocks:
        if block.get("type") == "tool_result":
            if texts:
                conversation.say("user", texts)
                texts = []
            id = text_in(block, "tool_use_id", where, "messages")
            conversation.result(id, _result(block, where))
        else:
            texts += _text(block, where, "text or tool_result")
    if texts:
        conversation.say("user", texts)


def _add_assistant(conversation: Conversation, blocks: Sequence[Placed]) -> None:
    for block, where in blocks:
        kind = block.get("type")
        if kind == "thinking":
            conversation.think(text_in(block, "thinking", where, "messages"))
        elif kind == "tool_use":
            id, name = (text_in(block, field, where, "messages") for field in ("id", "name"))
            if not isinstance(block.get("input"), dict):
                raise ApiError(f"{where} has no input: give an object", param="messages")
            conversation.call(id, name, msgspec.json.encode(block["input"]).decode())
        else:
            texts = _text(block, where, "text, thinking or tool_use")
            conversation.say("assistant", texts)


def _add_system(conversation: Conversation, blocks: Sequence[Placed]) -> None:
    conversation.say("system", [text for each in blocks for text in _text(*each, "text")])


_ADDERS = {"user": _add_user, "assistant": _add_assistant, "system": _add_system}


def _text(block: Mapping[str, Any], where: str, kinds: str) -> list[str]:
    if block.get("type") != "text":
        raise ApiError(
            f"{where} is of type {shown(block.get('type'))}, which is not served here: blocks of "
            f"this role are of type {kinds}",
            param="messages",
            code="unsupported_content",
        )
    return [text_in(block, "text", where, "messages")]


def _result(block: Mapping[str, Any], where: str) -> str:
    """What a tool gave; an error says so itself, since no template knows of any."""
    texts = texts_of(block.get("content") or "", _TEXT, where, "messages")
    text = "\n".join(texts)
    return f"Error: {text}" if block.get("is_error") else text


def _sampling(request: MessagesRequest) -> dict[str, Any]:
    fields = {name: getattr(request, name) for name in AS_IN_CHATS}
    return fields | {"stop": request.stop_sequences or None}


def _thinking(request: CountRequest) -> dict[str, Any]:
    """Off unless it is asked for, as far as the model's template has a switch for it."""
    thinking = request.thinking
    off = thinking is None or thinking.type == "disabled"
    fields: dict[str, Any] = {}
    if request.input_ids is None:
        fields["chat_template_kwargs"] = dict.fromkeys(THINKING, not off)
    if thinking is None or thinking.type != "enabled":
        return fields
    budget = thinking.budget_tokens
    if budget is None:
        raise ApiError(
            "thinking is enabled without budget_tokens: say how many it may take",
            param="thinking.budget_tokens",
        )
    if isinstance(request, MessagesRequest) and budget >= request.max_tokens:
        raise ApiError(
            f"thinking has budget_tokens {budget}, and max_tokens is {request.max_tokens}, which "
            "the answer is a part of: give more of those",
            param="thinking.budget_tokens",
        )
    return fields | {"max_thinking_tokens": budget}


def _tool(tool: Tool, index: int) -> ToolSpec:
    if tool.type not in (None, "custom"):
        raise ApiError(
            f"tool {index} of tools is of type {shown(tool.type)}, which is not served here: give "
            "tools of your own",
            param="tools",
            code="unsupported_tool",
        )
    if tool.input_schema is None:
        raise ApiError(f"tool {index} of tools has no input_schema: give one", param="tools")
    function = FunctionSpec(
        name=tool.name, description=tool.description, parameters=tool.input_schema
    )
    return ToolSpec(type="function", function=function)


def _choice(request: CountRequest) -> Any:
    choice = request.tool_choice
    assert choice is not None, "it was asked before"
    if choice.type != "tool":
        return {"auto": "auto", "any": "required", "none": "none"}[choice.type]
    if choice.name is None:
        raise ApiError("tool_choice is of type tool: name one", param="tool_choice")
    return {"type": "function", "function": {"name": choice.name}}


def _format(format: Mapping[str, Any]) -> dict[str, Any]:
    if format.get("type") != "json_schema":
        raise ApiError(
            f"output_config.format is of type {shown(format.get('type'))}: give json_schema",
            param="output_config.format",
        )
    return {"type": "json_schema", "json_schema": {"schema": format.get("schema")}}
