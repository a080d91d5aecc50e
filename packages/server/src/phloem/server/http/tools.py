"""Tools in chats: what the model is told of them, and calls that are made sure of by a constraint.

Owns the meaning of `tools` and `tool_choice`, the schema that a call's text keeps to, and the
reading of that text, piece by piece. `auto` shows the tools to the model and leaves what it says as
it is: finding calls in free text takes a parser of the model's own notation.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from phloem.server.constraints import ConstraintRequest, constraint_of
from phloem.server.http.errors import ApiError, refusing
from phloem.server.http.protocol import ChatRequest, FunctionSpec

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
        schema = _calls_schema(functions, parallel=request.parallel_tool_calls is not False)
        return ToolUse(shown, _constraint(request, schema))
    function = _named(choice, functions)
    return ToolUse(shown, _constraint(request, _parameters(function)), function.name)


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


def _constraint(request: ChatRequest, schema: Mapping[str, Any]) -> ConstraintRequest | None:
    # Compact: what a call is made of is read by programs, and most of it is forced then. In the
    # order of the schema: a call's name comes before its arguments.
    given = request.grammar_options or {}
    options = {"whitespace": "compact", **given, "property_order": "fixed"}
    with refusing("tools"):
        made = constraint_of({"json_schema": schema}, options)
    return made and ConstraintRequest(made.constraint, "tools", made.jump_forward, made.steering)


def _parameters(function: FunctionSpec) -> Mapping[str, Any]:
    given = _NO_PARAMETERS if function.parameters is None else function.parameters
    if given.get("type", "object") != "object":
        raise ApiError(
            f"tools has {function.name!r} with parameters of type {str(given['type'])[:100]!r}: "
            "arguments are an object",
            param="tools",
        )
    return {"type": "object", **given}


def _calls_schema(functions: Sequence[FunctionSpec], *, parallel: bool) -> dict[str, Any]:
    """A list of calls, each of one of the functions; of exactly one call if not `parallel`."""
    calls = [
        {
            "type": "object",
            "properties": {
                "name": {"const": function.name},
                "arguments": moved(
                    _parameters(function), f"/items/anyOf/{index}/properties/arguments"
                ),
            },
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for index, function in enumerate(functions)
    ]
    length = {"minItems": 1} if parallel else {"minItems": 1, "maxItems": 1}
    return {"type": "array", "items": {"anyOf": calls}, **length}


_VALUES = frozenset(("enum", "const", "default", "examples"))
"""Keywords whose values are data, whatever they look like."""
_MAPS = frozenset(
    ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies")
)
"""Keywords whose values have schemas under names of the author's choice."""


def moved(schema: Any, pointer: str) -> Any:
    """A schema as it must be at `pointer` of another: its references to itself find it there."""
    if isinstance(schema, list):
        return [moved(each, pointer) for each in schema]
    if not isinstance(schema, dict) or "$id" in schema:
        return schema  # one with a base of its own refers to that
    return {key: _moved_value(key, value, pointer) for key, value in schema.items()}


def _moved_value(key: str, value: Any, pointer: str) -> Any:
    if key in _VALUES:
        return value
    if key == "$ref" and isinstance(value, str) and (value == "#" or value.startswith("#/")):
        return f"#{pointer}{value[1:]}"
    if key in _MAPS and isinstance(value, dict):
        return {name: moved(each, pointer) for name, each in value.items()}
    return moved(value, pointer)


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


@dataclass
class CallList:
    """Reads a text that keeps to `_calls_schema`, however it is cut into pieces.

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
