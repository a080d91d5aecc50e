"""The API's description at `/openapi.json` and `/docs`: what each endpoint takes and answers.

What it takes comes from the structs that check it, what it answers from the table in
`phloem.server.http.answers`, and the parameters of path and query from the routes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from fastapi import FastAPI

from phloem.server.http.answer_shapes import AnthropicError, OpenAIError
from phloem.server.http.answers import ALWAYS, ANSWERS, EVENTS, JSON, MEANING, TEXT, Answers
from phloem.server.http.anthropic.errors import MESSAGES, OVERLOADED

_REF = "#/components/schemas/{name}"
_KEYS: Mapping[str, Any] = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
}
_ANY_KEY: list[dict[str, list[str]]] = [{name: []} for name in _KEYS]
_TRACING: list[dict[str, Any]] = [
    {
        "name": "x-request-id",
        "in": "header",
        "description": "What the request is called in its answer and in logs; made up otherwise.",
        "schema": {"type": "string", "pattern": "^[A-Za-z0-9._:/+=@-]{1,128}$"},
    },
    {
        "name": "traceparent",
        "in": "header",
        "description": "The trace that the request is a part of, as the W3C has it.",
        "schema": {"type": "string", "pattern": "^00-[0-9a-f]{32}-[0-9a-f]{16}-0[01]$"},
    },
]
_EVENT = {
    "description": "One event: its data is JSON, or of OpenAI's API at the end [DONE].",
    "type": "object",
    "properties": {"event": {"type": "string"}, "data": {"type": "string"}},
    "required": ["data"],
}
_NAME = {"x-request-id": {"description": "Its name.", "schema": {"type": "string"}}}
_RETRY = {
    "Retry-After": {
        "description": "Seconds after which it may go better, where that is known.",
        "schema": {"type": "integer", "minimum": 1},
    }
}
_TRUTH = {
    name: {"description": meaning, "schema": {"type": kind}}
    for name, meaning, kind in (
        ("x-phloem-cached-tokens", "Tokens of the first prompt that were cached.", "integer"),
        ("x-phloem-queue-ms", "How long the first sequence waited.", "number"),
        ("x-phloem-prefill-ms", "From there to its first token.", "number"),
        ("x-phloem-decode-ms", "From there to its end; of whole answers.", "number"),
        ("x-phloem-per-token-ms", "Of that, for each token; of whole answers.", "number"),
        ("x-phloem-retractions", "How often its memory was taken; of whole answers.", "integer"),
        ("x-phloem-cache-miss", "Why no more was cached, where that was asked for.", "string"),
    )
}


def body_of(shape: type[msgspec.Struct]) -> dict[str, Any]:
    """A route's `openapi_extra`, where its body is a `shape`."""
    schema = {"$ref": _REF.format(name=shape.__name__)}
    return {"requestBody": {"required": True, "content": {JSON: {"schema": schema}}}}


def describe(app: FastAPI, bodies: Sequence[type[msgspec.Struct]], keys_wanted: bool) -> None:
    """Complete the app's description.

    Args:
        app: has all routes already.
        bodies: the shapes that `body_of` refers to.
        keys_wanted: whether requests without an API key are refused.
    """
    routes_only = app.openapi
    security = _ANY_KEY if keys_wanted else [*_ANY_KEY, {}]
    made: dict[str, Any] = {}

    def openapi() -> dict[str, Any]:
        if not made:
            made.update(_completed(routes_only(), bodies, security))
        return made

    app.openapi = openapi  # type: ignore[method-assign]


def _completed(
    described: dict[str, Any],
    bodies: Sequence[type[msgspec.Struct]],
    security: list[dict[str, list[str]]],
) -> dict[str, Any]:
    answers = [
        (operation, path, ANSWERS.get((method, path), Answers()))
        for path, operations in described["paths"].items()
        for method, operation in operations.items()
    ]
    shapes = [each.shape for _, _, each in answers if each.shape is not None]
    types = [*bodies, OpenAIError, AnthropicError, *shapes]
    schemas, components = msgspec.json.schema_components(types, ref_template=_REF)
    successes = iter(schemas[len(bodies) + 2 :])
    for operation, path, each in answers:
        operation["responses"] = _responses(
            path, each, None if each.shape is None else next(successes)
        )
        operation["parameters"] = [*operation.get("parameters", ()), *_TRACING]
        if each.open:
            operation["security"] = []
    described["components"] = {"schemas": components, "securitySchemes": dict(_KEYS)}
    described["security"] = security
    return described


def _responses(path: str, answers: Answers, schema: Mapping[str, Any] | None) -> dict[str, Any]:
    content: dict[str, Any] = {TEXT: {"schema": {"type": "string"}}}
    if schema is not None:
        content = {JSON: {"schema": schema}}
    if answers.streams:
        content[EVENTS] = {"schema": _EVENT}
    truth = _TRUTH if 499 in answers.errors else {}
    success = {"description": "It went well.", "content": content, "headers": _NAME | truth}
    anthropic = path == MESSAGES or path.startswith(f"{MESSAGES}/")
    shape = AnthropicError if anthropic else OpenAIError
    errors = {
        str(OVERLOADED if anthropic and status == 503 else status): _error(status, shape)
        for status in sorted((*ALWAYS, *answers.errors))
    }
    return {"200": success} | errors


def _error(status: int, shape: type[msgspec.Struct]) -> dict[str, Any]:
    headers = _NAME | (_RETRY if status in (408, 429, 503) else {})
    return {
        "description": MEANING[status],
        "content": {JSON: {"schema": {"$ref": _REF.format(name=shape.__name__)}}},
        "headers": headers,
    }
