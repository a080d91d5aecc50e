"""Tools in chats: what the model is told of them, and calls that are made sure of by a constraint.

Owns the meaning of `tools` and `tool_choice`, what a call's text keeps to, and the reading of that
text, piece by piece. `auto` shows the tools to the model and leaves what it says as
it is: finding calls in free text takes a parser of the model's own notation.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
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


@dataclass(frozen=True, slots=True)
class CallPart:
    """What is new of a call: its name comes first and once, then its arguments in pieces."""

    index: int
    name: str | None
    arguments: str


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


class NamedCall:
    """Reads the text of one call of a known function: all of it is the arguments."""

    def __init__(self, name: str) -> None:
        self._name: str | None = name

    def feed(self, text: str) -> list[CallPart]:
        """What more of the text says."""
        if not text:
            return []
        name, self._name = self._name, None
        return [CallPart(0, name, text)]

    def finish_reason(self, ended: str) -> str:
        """How the answer ended, as OpenAI calls it where the function was named: as any other."""
        return ended


@dataclass
class CallList:
    """Reads a list of calls, `[{"name": ..., "arguments": {...}}]`, however it is cut into pieces.

    A call is told of once its name is known, which comes before its arguments.
    """

    _index: int = -1
    """Of the latest call."""
    _head: str = ""
    """The latest call's text up to its arguments."""
    _depth: int = 0
    """Brackets that are open: one in the list, two in a call, more in its arguments."""
    _in_string: bool = False
    _escaped: bool = False
    _new: list[CallPart] = field(default_factory=list)

    def feed(self, text: str) -> list[CallPart]:
        """What more of the text says."""
        arguments = 0
        for position, character in enumerate(text):
            inside = self._depth > 2
            self._take(character)
            if not inside and self._depth > 2:
                arguments = position
                self._begin()
            elif inside and self._depth == 2:
                self._add(text[arguments : position + 1])
            elif not inside and self._depth == 2:
                self._head += character
        if self._depth > 2:
            self._add(text[arguments:])
        new, self._new = self._new, []
        return new

    def finish_reason(self, ended: str) -> str:
        """How the answer ended, as OpenAI calls it: by calls if its list is complete, or else by
        what cut it, be it a stop string.
        """
        complete = self._index >= 0 and self._depth == 0
        return "tool_calls" if complete and ended == "stop" else ended

    def _take(self, character: str) -> None:
        """Follow the nesting."""
        if self._in_string:
            if self._escaped or character == "\\":
                self._escaped = not self._escaped
            elif character == '"':
                self._in_string = False
        elif character == '"':
            self._in_string = True
        elif character in "[{":
            self._depth += 1
            if self._depth == 2:
                self._head = ""
        elif character in "]}":
            self._depth -= 1

    def _begin(self) -> None:
        self._index += 1
        # The head is an object's text up to where the value of "arguments" begins.
        name = json.loads(f"{self._head}null}}")["name"]
        self._new.append(CallPart(self._index, name, ""))

    def _add(self, arguments: str) -> None:
        if arguments:
            self._new.append(CallPart(self._index, None, arguments))


CallReader = NamedCall | CallList


def call_reader(named: str | None) -> CallReader:
    """A reader for one sequence of a chat whose `ToolUse` has a constraint."""
    return CallList() if named is None else NamedCall(named)
