"""The ASGI app: every route of the server over a `Frontend`, which has the engine.

Owns the routes and what surrounds each request. The work is in the modules beside this one.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping
from functools import partial
from typing import Any

from fastapi import FastAPI, Request
from starlette.responses import Response
from starlette.types import Send

from phloem.server.frontend import Frontend
from phloem.server.http.body import checked, read_json
from phloem.server.http.constraints import with_constraints
from phloem.server.http.describe import body_of, describe_bodies
from phloem.server.http.errors import install_handlers
from phloem.server.http.generation import Answer, Generation
from phloem.server.http.grammar import add_grammar_check
from phloem.server.http.logprobs import TokenNames
from phloem.server.http.metrics import Metrics
from phloem.server.http.native import prepare_native
from phloem.server.http.operation import BODIES, check_model, operation_router
from phloem.server.http.prepare import Prepared, prepare_chat, prepare_completion, tell_tenant
from phloem.server.http.protocol import (
    IGNORED,
    UNSUPPORTED_IN_CHAT,
    UNSUPPORTED_IN_COMPLETIONS,
    UNSUPPORTED_IN_GENERATE,
    ChatRequest,
    CompletionRequest,
    GenerateRequest,
    GrammarCheckRequest,
)
from phloem.server.http.surround import Surround

MAX_BODY_BYTES = 16 << 20
HEALTH_TIMEOUT = 10.0
"""Seconds; a step of a long prefill on a CPU takes about one."""


def create_app(
    frontend: Frontend,
    *,
    served_model_name: str,
    options: Mapping[str, Any] | None = None,
    max_body_bytes: int = MAX_BODY_BYTES,
    health_timeout: float = HEALTH_TIMEOUT,
) -> FastAPI:
    """The server's app.

    Args:
        frontend: has the engine; used in the loop that the app runs in.
        served_model_name: what clients call the model.
        options: the engine's options, for `/server_info`.
        max_body_bytes: larger requests are refused with 413.
        health_timeout: seconds within which the scheduler must answer `/health`.
    """
    app = FastAPI(title="Phloem", version=_version())
    metrics = Metrics()
    install_handlers(app)
    app.add_middleware(Surround, metrics=metrics)
    info = {"version": _version(), "options": dict(options or {})}
    app.include_router(
        operation_router(frontend, metrics, served_model_name, info, health_timeout, max_body_bytes)
    )
    _add_generation(app, frontend, metrics, served_model_name, max_body_bytes)
    add_grammar_check(app, frontend, max_body_bytes)
    return app


def _add_generation(
    app: FastAPI, frontend: Frontend, metrics: Metrics, model: str, max_body_bytes: int
) -> None:
    names = TokenNames(frontend.tokenizer)
    generation = Generation(frontend, metrics)

    async def work(prepared: Prepared, send: Send) -> None:
        constrained = await with_constraints(
            frontend.grammar, metrics, prepared.requests, prepared.constraints
        )
        run = generation.send_stream if prepared.stream else generation.send_whole
        await run(constrained, prepared.form, prepared.prompt, send)

    def answer(prepared: Prepared) -> Answer:
        # Compiling is a part of the answer's work: it ends when the client leaves.
        return Answer(partial(work, prepared))

    @app.post("/v1/chat/completions", openapi_extra=body_of(ChatRequest))
    async def chat_completions(request: Request) -> Response:
        """OpenAI's chat completions."""
        content = await read_json(request, max_body_bytes)
        given = checked(content, ChatRequest, UNSUPPORTED_IN_CHAT, IGNORED)
        tell_tenant(given, request.headers.get("authorization"))
        check_model(given.model, model)
        return answer(await prepare_chat(frontend, names, model, given))

    @app.post("/v1/completions", openapi_extra=body_of(CompletionRequest))
    async def completions(request: Request) -> Response:
        """OpenAI's text completions."""
        content = await read_json(request, max_body_bytes)
        given = checked(content, CompletionRequest, UNSUPPORTED_IN_COMPLETIONS, IGNORED)
        tell_tenant(given, request.headers.get("authorization"))
        check_model(given.model, model)
        return answer(await prepare_completion(frontend, names, model, given))

    @app.post("/generate", openapi_extra=body_of(GenerateRequest))
    async def generate(request: Request) -> Response:
        """The engine's own results."""
        content = await read_json(request, max_body_bytes)
        given = checked(content, GenerateRequest, UNSUPPORTED_IN_GENERATE, ())
        tell_tenant(given, request.headers.get("authorization"))
        return answer(await prepare_native(frontend, given))

    shapes = (ChatRequest, CompletionRequest, GenerateRequest, GrammarCheckRequest)
    describe_bodies(app, (*shapes, *BODIES))


def _version() -> str:
    try:
        return importlib.metadata.version("phloem-server")
    except importlib.metadata.PackageNotFoundError:
        return "0+source"
