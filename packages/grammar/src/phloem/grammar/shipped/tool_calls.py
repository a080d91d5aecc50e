"""Calls of tools that are declared as in the OpenAI API, in JSON or in a model's own tags."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias
from urllib.parse import quote

from phloem.grammar.constraint import Constraint
from phloem.grammar.errors import GrammarError, UnsupportedConstraint
from phloem.grammar.json_schema.document import Document
from phloem.grammar.json_schema.draft import Draft, ref_hides_siblings
from phloem.grammar.json_schema.values import escape

Tool: TypeAlias = Mapping[str, Any]
"""`{"type": "function", "function": {"name": ..., "parameters": a JSON schema}}`."""

_NO_ARGUMENTS = {"type": "object", "properties": {}, "additionalProperties": False}


def tool_call(tools: Sequence[Tool], name: str | None = None) -> Constraint:
    """One call, `{"name": ..., "arguments": {...}}`, of any tool or the named one.

    Raises:
        GrammarError: if there are no tools, or none of that name.
    """
    if name is not None:
        tools = [tool for tool in tools if tool["function"]["name"] == name]
    return Constraint.json_schema(_call(tools, ""))


def tool_calls(tools: Sequence[Tool], at_most: int | None = None) -> Constraint:
    """A list of one call or more, for models that call tools in parallel.

    Raises:
        GrammarError: if there are no tools.
    """
    schema = {"type": "array", "items": _call(tools, "/items"), "minItems": 1}
    return Constraint.json_schema(schema if at_most is None else {**schema, "maxItems": at_most})


def tagged_tool_calls(
    tools: Sequence[Tool],
    *,
    begin: str = "<tool_call>\n",
    end: str = "\n</tool_call>",
    required: bool = False,
    parallel: bool = True,
) -> Constraint:
    """Free text in which `begin` leads to a call, as Qwen and Hermes models write them.

    Args:
        required: whether there must be a call. The text before it is free all the same.
        parallel: whether more text and more calls may follow the first.

    Raises:
        GrammarError: if there are no tools.
    """
    tags = []
    for name, parameters in _functions(tools):
        head = f'{begin}{{"name": {json.dumps(name)}, "arguments": '
        tags.append({"begin": head, "schema": parameters, "end": "}" + end})
    return Constraint.structural_tag(
        {
            "triggers": [begin],
            "tags": tags,
            "at_least_one": required,
            "stop_after_first": not parallel,
        }
    )


def _call(tools: Sequence[Tool], pointer: str) -> dict[str, Any]:
    """The schema of a call; it will stand at a pointer of the whole schema."""
    functions = _functions(tools)
    many = len(functions) > 1
    calls = []
    for index, (name, parameters) in enumerate(functions):
        place = f"{pointer}/anyOf/{index}" if many else pointer
        arguments = _moved(parameters, f"{place}/properties/arguments")
        calls.append(
            {
                "type": "object",
                "properties": {"name": {"const": name}, "arguments": arguments},
                "required": ["name", "arguments"],
                "additionalProperties": False,
            }
        )
    return {"anyOf": calls} if many else calls[0]


def _functions(tools: Sequence[Tool]) -> list[tuple[str, Any]]:
    if not tools:
        raise GrammarError("there are no tools to call: give at least one, of the right name")
    functions = [tool["function"] for tool in tools]
    return [(one["name"], one.get("parameters") or _NO_ARGUMENTS) for one in functions]


def _moved(schema: Any, pointer: str) -> Any:
    """A schema that means the same where it stands at a pointer of another schema.

    Its references are pointers then, and the names that they went by are gone.

    Raises:
        GrammarError, UnsupportedConstraint: a reference leads to nothing, or it is no schema.
    """
    if '"$ref"' not in Constraint.json_schema(schema).source:
        return schema  # like most: to find all of its subschemas takes a while

    def moved(value: Any, place: str) -> Any:
        if isinstance(value, list):
            return [moved(part, f"{place}/{index}") for index, part in enumerate(value)]
        if not isinstance(value, dict):
            return value
        parts = {word: moved(part, f"{place}/{escape(word)}") for word, part in value.items()}
        return _renamed(document, place, parts, pointer) if document.has(place) else parts

    try:
        document = Document(schema)
        return moved(schema, "")
    except UnsupportedConstraint as error:
        place = f"{pointer}{error.pointer}"
        raise UnsupportedConstraint(place, error.keyword, error.reason) from error


def _renamed(document: Document, place: str, schema: dict[str, Any], pointer: str) -> Any:
    """One subschema, from its place in a document, without a name and with a pointer as `$ref`."""
    names = {"$ref", "$anchor", "id" if document.draft is Draft.D4 else "$id"}
    unnamed = {word: value for word, value in schema.items() if word not in names}
    if "$ref" not in schema:
        return unnamed
    source = document.at(place)
    target = document.resolve(schema["$ref"], source)
    link = {"$ref": f"#{quote(pointer + target.pointer, safe='/$~')}"}
    if ref_hides_siblings(source.schema, document.schema, document.draft, place):
        return {word: unnamed[word] for word in ("$defs", "definitions") if word in unnamed} | link
    return unnamed | {"allOf": [*unnamed.get("allOf", ()), link]}
