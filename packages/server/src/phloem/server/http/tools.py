"""Tools in chats: what the model is told of them, and calls that are made sure of by a constraint.

Owns the meaning of `tools` and `tool_choice`, and what a call's text keeps to. Reading calls, those
made sure of and those in free text, is the parsers' (`phloem.server.parsers`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from phloem.grammar import Constraint
from phloem.grammar.shipped import tool_calls
from phloem.server.constraints import ConstraintRequest, grammar_options
from phloem.server.http.chat_protocol import ChatRequest, FunctionSpec
from phloem.server.http.errors import ApiError, refusing

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_MOST_TOOLS = 128
_NO_PARAMETERS: Mapping[str, Any] = {
    "type": "object",
    "properties": {},
    "additionalProperties": False,
}


@dataclass(frozen=True, slots=True)
class ToolUse:
    """What a chat's tools come to."""

    shown: list[dict[str, Any]] | None = None
    """The tools as templates take them; None: the model is told of none."""
    constraint: ConstraintRequest | None = None
    """That makes sure of a call."""
    named: str | None = None
    """The one function that must be called; None beside a constraint: any of them."""


def tool_use(request: ChatRequest) -> ToolUse:
    """Read `tools` and `tool_choice`.

    Raises:
        ApiError: they are malformed, or do not fit each other.
    """
    functions = [tool.function for tool in request.tools or ()]
    _check_names([function.name for function in functions])
    choice = request.tool_choice
    if choice is None:
        choice = "auto" if functions else "none"
    if choice == "none" or (choice == "auto" and not functions):
        return ToolUse()
    shown = [msgspec.to_builtins(tool) for tool in request.tools or ()]
    if choice == "auto":
        return ToolUse(shown)
    if not functions:
        raise ApiError("tool_choice asks for a call, but there are no tools", param="tool_choice")
    if choice == "required":
        return ToolUse(shown, _constraint(request, functions))
    function = _named(choice, functions)
    return ToolUse(shown, _constraint(request, [function], named=True), function.name)


def _check_names(names: Sequence[str]) -> None:
    if len(names) > _MOST_TOOLS:
        raise ApiError(f"there are {len(names)} tools: give at most {_MOST_TOOLS}", param="tools")
    for index, name in enumerate(names):
        if not _NAME.fullmatch(name):
            raise ApiError(
                f"tools has the name {name[:100]!r}: use 1 to 64 letters, digits, _ and -",
                param="tools",
            )
        if name in names[:index]:
            raise ApiError(f"tools has {name!r} twice: names must differ", param="tools")


def _named(choice: Any, functions: Sequence[FunctionSpec]) -> FunctionSpec:
    wanted = choice.get("function") if isinstance(choice, dict) else None
    if not isinstance(wanted, dict) or choice.get("type") != "function" or "name" not in wanted:
        raise ApiError(
            f"tool_choice is {str(choice)[:100]!r}: give none, auto, required, or an object like "
            '{"type": "function", "function": {"name": ...}}',
            param="tool_choice",
        )
    for function in functions:
        if function.name == wanted["name"]:
            return function
    raise ApiError(
        f"tool_choice names {str(wanted['name'])[:100]!r}, which is none of the tools",
        param="tool_choice",
    )


def _constraint(
    request: ChatRequest, functions: Sequence[FunctionSpec], *, named: bool = False
) -> ConstraintRequest:
    """That of the arguments of the one function which is named, or of a list of calls."""
    with refusing("tools"):
        options = grammar_options(request.grammar_options)
        if named:
            made = Constraint.json_schema(_parameters(functions[0]))
        else:
            at_most = 1 if request.parallel_tool_calls is False else None
            made = tool_calls([_declared(function) for function in functions], at_most)
        # Compact: what a call is made of is read by programs, and most of it is forced then.
        made = replace(
            made,
            whitespace=options.whitespace or "compact",
            property_order=options.property_order or "fixed",
            formats=options.formats or "assert",
        )
    if not named and made.property_order == "free":
        raise ApiError(
            "grammar_options has property_order free, but in a list of calls the name of each "
            "comes first: leave it out, or name one function in tool_choice",
            param="grammar_options",
        )
    return ConstraintRequest(made, "tools", options.jump_forward, options.steering)


def _declared(function: FunctionSpec) -> dict[str, Any]:
    return {"function": {"name": function.name, "parameters": _parameters(function)}}


def _parameters(function: FunctionSpec) -> Mapping[str, Any]:
    given = _NO_PARAMETERS if function.parameters is None else function.parameters
    if given.get("type", "object") != "object":
        raise ApiError(
            f"tools has {function.name!r} with parameters of type {str(given['type'])[:100]!r}: "
            "arguments are an object",
            param="tools",
        )
    return {"type": "object", **given}
