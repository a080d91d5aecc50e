"""Writes docs/api-fields.md: every field of requests that generate, served, refused or ignored.

It is made of the structs that check the requests, so that the page says what the server does.
`python scripts/api_fields.py` writes it; a test fails where it is out of date.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from phloem.server.http.anthropic.protocol import (
    IGNORED_IN_MESSAGES,
    UNSUPPORTED_IN_MESSAGES,
    MessagesRequest,
)
from phloem.server.http.chat_protocol import UNSUPPORTED_IN_CHAT, ChatRequest
from phloem.server.http.protocol import (
    IGNORED,
    IGNORED_IN_GENERATE,
    UNSUPPORTED_IN_COMPLETIONS,
    UNSUPPORTED_IN_GENERATE,
    CompletionRequest,
    GenerateRequest,
    OpenAIRequest,
)
from phloem.server.http.responses.protocol import (
    IGNORED_IN_RESPONSES,
    UNSUPPORTED_IN_RESPONSES,
    ResponseRequest,
)

PAGE = Path(__file__).parents[1] / "docs/api-fields.md"

_INTRODUCTION = """\
# The fields of requests

Made by `scripts/api_fields.py` from the structs that check each request: do not edit it. Every
field is served, or refused with a 400 that names it, or is a hint that changes no output and is
ignored. null means that a field was left out. A field that is in no table is told of in the header
`x-phloem-warnings`, or with `--strict-fields` refused.
"""


class Endpoint(NamedTuple):
    """What one endpoint does with the fields of its requests."""

    path: str
    shape: type[msgspec.Struct]
    unsupported: Mapping[str, Collection[Any]]
    ignored: Collection[str]
    apart: type[msgspec.Struct] | None = None
    """The struct whose fields have a table of their own."""


ENDPOINTS = (
    Endpoint("/v1/chat/completions", ChatRequest, UNSUPPORTED_IN_CHAT, IGNORED, OpenAIRequest),
    Endpoint(
        "/v1/completions", CompletionRequest, UNSUPPORTED_IN_COMPLETIONS, IGNORED, OpenAIRequest
    ),
    Endpoint("/v1/responses", ResponseRequest, UNSUPPORTED_IN_RESPONSES, IGNORED_IN_RESPONSES),
    Endpoint("/v1/messages", MessagesRequest, UNSUPPORTED_IN_MESSAGES, IGNORED_IN_MESSAGES),
    Endpoint("/generate", GenerateRequest, UNSUPPORTED_IN_GENERATE, IGNORED_IN_GENERATE),
)


def page() -> str:
    """The page's text."""
    shared = "Both OpenAI endpoints"
    parts = [_INTRODUCTION, f"## {shared}\n", _served(described(OpenAIRequest))]
    for endpoint in ENDPOINTS:
        fields = described(endpoint.shape)
        also = ""
        if endpoint.apart is not None:
            known = endpoint.apart.__struct_fields__
            fields = {name: each for name, each in fields.items() if name not in known}
            also = "Beside those of both OpenAI endpoints:\n\n"
        parts += [f"## `POST {endpoint.path}`\n", also + _served(fields), _others(endpoint)]
    return "\n".join(parts)


def described(shape: type[msgspec.Struct]) -> dict[str, tuple[str, str]]:
    """Each field's type and description, as the source of the struct has them."""
    found: dict[str, tuple[str, str]] = {}
    for kind in reversed(shape.__mro__):
        if not issubclass(kind, msgspec.Struct) or kind is msgspec.Struct:
            continue
        (body,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
        assert isinstance(body, ast.ClassDef), f"{kind} is no class"
        for item, after in zip(body.body, [*body.body[1:], None]):
            if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                found[item.target.id] = (_type(item.annotation), _text(after))
    return {name: found[name] for name in shape.__struct_fields__}


def _type(annotation: ast.expr) -> str:
    parts = [part for part in ast.unparse(annotation).split(" | ") if part != "None"]
    return " or ".join(parts).replace("Any", "any")


def _text(statement: ast.stmt | None) -> str:
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        return " ".join(str(statement.value.value).split())
    return ""


def _served(fields: Mapping[str, tuple[str, str]]) -> str:
    rows = [f"| `{name}` | {kind} | {text} |" for name, (kind, text) in fields.items()]
    return "\n".join(["| field | type | |", "|---|---|---|", *rows, ""])


def _others(endpoint: Endpoint) -> str:
    refused = []
    for name in sorted(endpoint.unsupported):
        taken = " or ".join(f"`{value!r}`" for value in endpoint.unsupported[name])
        refused.append(f"`{name}`" + (f" (but {taken})" if taken else ""))
    ignored = [f"`{name}`" for name in sorted(endpoint.ignored)]
    return f"Refused: {', '.join(refused)}.\n\nIgnored: {', '.join(ignored)}.\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
