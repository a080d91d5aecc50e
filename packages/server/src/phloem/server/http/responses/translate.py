"""From a request for a response to that for a chat.

Owns what items and OpenAI's newer fields come to in a chat. What a chat comes to is the affair of
`phloem.server.http.chat_request`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from phloem.server.http.chat_protocol import ChatRequest, FunctionSpec, ToolSpec
from phloem.server.http.errors import ApiError
from phloem.server.http.responses.protocol import (
    AS_IN_CHATS,
    INCLUDABLE,
    LOGPROBS,
    ResponseRequest,
)
from phloem.server.http.translation import Conversation, shown, text_in, texts_of

CHAT_NAMES = {
    "messages": "input",
    "max_completion_tokens": "max_output_tokens",
    "max_tokens": "max_output_tokens",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
}
"""What a chat's fields are called here."""

_TEXT_PARTS = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}
_ROLES = ("user", "assistant", "system", "developer")
_TOOL_FIELDS = {"type", *FunctionSpec.__struct_fields__}
_MOST_METADATA = 16


def chat_of(request: ResponseRequest, history: Sequence[Any]) -> ChatRequest:
    """The chat that a request asks for; `history` has the items of the responses before it.

    Raises:
        ApiError: something in it is malformed, or not served.
    """
    check_extras(request)
    tools, choice = _tools_of(request)
    fields = {name: getattr(request, name) for name in AS_IN_CHATS}
    if LOGPROBS in (request.include or ()) or request.top_logprobs:
        fields |= {"logprobs": True, "top_logprobs": request.top_logprobs or 0}
    if request.reasoning is not None and request.reasoning.effort is not None:
        fields["reasoning_effort"] = request.reasoning.effort
    return ChatRequest(
        messages=None if request.input is None else _messages(request, history),
        max_completion_tokens=request.max_output_tokens,
        tools=tools,
        tool_choice=choice,
        response_format=_format_of(request),
        **fields,
    )


def items_of(given: str | list[Any] | None) -> list[Any]:
    """An input as items."""
    return [{"role": "user", "content": given}] if isinstance(given, str) else given or []


def check_extras(request: ResponseRequest) -> None:
    """Refuse what no chat would.

    Raises:
        ApiError: naming the field.
    """
    beside = request.instructions or request.previous_response_id
    if request.input is None and request.input_ids is not None and beside:
        raise ApiError(
            "input_ids are all of the prompt: leave out instructions and previous_response_id",
            param="input_ids",
        )
    for name in request.include or ():
        if name not in INCLUDABLE:
            raise ApiError(
                f"include has {shown(name)}, which this server does not have: it may have "
                f"{' and '.join(INCLUDABLE)}",
                param="include",
                code="unsupported_parameter",
            )
    if len(request.metadata or ()) > _MOST_METADATA:
        raise ApiError(
            f"metadata has {len(request.metadata or ())} entries and may have {_MOST_METADATA}",
            param="metadata",
        )


def _messages(request: ResponseRequest, history: Sequence[Any]) -> list[dict[str, Any]]:
    conversation = Conversation()
    if request.instructions:
        conversation.say("system", [request.instructions])
    for index, item in enumerate([*history, *items_of(request.input)]):
        own = index - len(history)
        where = f"item {own} of input" if own >= 0 else f"item {index} of the responses before"
        _add_item(conversation, item, where)
    return conversation.messages


def _add_item(conversation: Conversation, item: Any, where: str) -> None:
    kind = item.get("type", "message") if isinstance(item, dict) else None
    add = _ITEMS.get(kind) if isinstance(kind, str) else None
    if add is None:
        raise ApiError(
            f"{where} is of type {shown(kind)}, which is not served here: types are "
            f"{', '.join(_ITEMS)}",
            param="input",
            code="unsupported_content",
        )
    add(conversation, item, where)


def _add_message(conversation: Conversation, item: Mapping[str, Any], where: str) -> None:
    role = item.get("role")
    if role not in _ROLES:
        raise ApiError(
            f"{where} has role {shown(role)}: roles are {', '.join(_ROLES)}", param="input"
        )
    conversation.say(
        role, texts_of(item.get("content"), _TEXT_PARTS, f"the content of {where}", "input")
    )


def _add_call(conversation: Conversation, item: Mapping[str, Any], where: str) -> None:
    fields = (text_in(item, name, where, "input") for name in ("call_id", "name", "arguments"))
    conversation.call(*fields)


def _add_result(conversation: Conversation, item: Mapping[str, Any], where: str) -> None:
    id = text_in(item, "call_id", where, "input")
    texts = texts_of(item.get("output"), _TEXT_PARTS, f"the output of {where}", "input")
    conversation.result(id, "\n".join(texts))


def _add_reasoning(conversation: Conversation, item: Mapping[str, Any], where: str) -> None:
    told = item.get("content") or item.get("summary") or []
    kinds = {"reasoning_text": "text", "summary_text": "text"}
    texts = texts_of(told, kinds, where, "input")
    if texts:
        conversation.think("\n".join(texts))
    elif item.get("encrypted_content"):
        raise ApiError(
            f"{where} has encrypted_content alone, which nobody here can read: leave it out",
            param="input",
        )


_ITEMS = {
    "message": _add_message,
    "function_call": _add_call,
    "function_call_output": _add_result,
    "reasoning": _add_reasoning,
}


def _tools_of(request: ResponseRequest) -> tuple[list[ToolSpec] | None, Any]:
    """The tools and the choice among them, as a chat has them."""
    tools = [_tool(tool, index) for index, tool in enumerate(request.tools or ())]
    choice = request.tool_choice
    if not isinstance(choice, dict):
        return tools or None, choice
    if choice.get("type") == "function":
        return tools, {"type": "function", "function": {"name": choice.get("name")}}
    if choice.get("type") != "allowed_tools":
        raise ApiError(
            f"tool_choice is of type {shown(choice.get('type'))}: give function or allowed_tools",
            param="tool_choice",
        )
    mode, allowed = choice.get("mode"), choice.get("tools")
    if mode not in ("auto", "required") or not isinstance(allowed, list):
        raise ApiError(
            "tool_choice of type allowed_tools has a mode, auto or required, and a list of tools",
            param="tool_choice",
        )
    names = [tool.get("name") if isinstance(tool, dict) else None for tool in allowed]
    known = [tool.function.name for tool in tools]
    for name in names:
        if name not in known:
            raise ApiError(
                f"tool_choice allows {shown(name)}, which is none of the tools",
                param="tool_choice",
            )
    return [tool for tool in tools if tool.function.name in names] or None, mode


def _tool(tool: Mapping[str, Any], index: int) -> ToolSpec:
    if tool.get("type") != "function":
        raise ApiError(
            f"tool {index} of tools is of type {shown(tool.get('type'))}, which is not served "
            "here: give functions",
            param="tools",
            code="unsupported_tool",
        )
    for name, value in tool.items():
        if name not in _TOOL_FIELDS and value not in (None, False):
            raise ApiError(
                f"tool {index} of tools has {shown(name)}, which is not served here: leave it out",
                param="tools",
            )
    fields = {name: tool[name] for name in FunctionSpec.__struct_fields__ if name in tool}
    try:
        return ToolSpec(type="function", function=msgspec.convert(fields, FunctionSpec))
    except msgspec.ValidationError as error:
        raise ApiError(f"tool {index} of tools is wrong: {error}", param="tools") from error


def _format_of(request: ResponseRequest) -> Any:
    """`text.format` as a chat's `response_format`."""
    format = None if request.text is None else request.text.format
    if format is None or format.get("type") != "json_schema":
        return format
    return {
        "type": "json_schema",
        "json_schema": {name: value for name, value in format.items() if name != "type"},
    }
