"""The ASGI app: every route of the server over a `Frontend`, which has the engine.

Owns the routes and what surrounds each request. The work is in the modules beside this one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI

from phloem.server.bodies.reader import BodyReader
from phloem.server.frontend import Frontend
from phloem.server.http.anthropic.protocol import CountRequest, MessagesRequest
from phloem.server.http.anthropic.routes import add_messages
from phloem.server.http.auth import Access, Gate
from phloem.server.http.chat_protocol import ChatRequest
from phloem.server.http.chat_request import add_chat
from phloem.server.http.chat_setup import ChatOptions, ChatSetup
from phloem.server.http.completion_request import add_completions
from phloem.server.http.connections import ConnectionCounts
from phloem.server.http.cors import Cors
from phloem.server.http.describe import describe
from phloem.server.http.embeddings import BODIES as EMBEDDING_BODIES
from phloem.server.http.embeddings import add_embeddings
from phloem.server.http.error_answers import install_handlers
from phloem.server.http.generation import Generation
from phloem.server.http.grammar import add_grammar_check
from phloem.server.http.inspect import add_inspection
from phloem.server.http.limits import Limiter
from phloem.server.http.logprobs import TokenNames
from phloem.server.http.metrics import Metrics
from phloem.server.http.native import add_native
from phloem.server.http.operation import BODIES as OPERATION_BODIES
from phloem.server.http.operation import operation_router
from phloem.server.http.protocol import CompletionRequest, GenerateRequest, GrammarCheckRequest
from phloem.server.http.responses.protocol import ResponseRequest
from phloem.server.http.responses.routes import add_responses
from phloem.server.http.responses.store import ResponseStore
from phloem.server.http.service import Service
from phloem.server.http.surround import Surround
from phloem.server.http.tokenization import BODIES as TOKENIZATION_BODIES
from phloem.server.http.tokenization import add_tokenization
from phloem.server.http.ui import add_ui
from phloem.server.http.unknown_fields import UnknownFields
from phloem.server.keys import UNLIMITED, KeyRing
from phloem.server.observability.excerpts import Excerpts
from phloem.server.observability.watch import Observation
from phloem.server.version import version

MAX_BODY_BYTES = 16 << 20
HEALTH_TIMEOUT = 10.0
"""Seconds; a step of a long prefill on a CPU takes about one."""


def create_app(
    frontend: Frontend,
    *,
    served_model_name: str,
    options: Mapping[str, Any] | None = None,
    chat: ChatOptions | None = None,
    max_body_bytes: int = MAX_BODY_BYTES,
    access: Access | None = None,
    limiter: Limiter | None = None,
    cors_origins: Sequence[str] = (),
    strict_fields: bool = False,
    health_timeout: float = HEALTH_TIMEOUT,
    observation: Observation | None = None,
    connections: ConnectionCounts | None = None,
    responses: ResponseStore | None = None,
    bodies: BodyReader | None = None,
) -> FastAPI:
    """The server's app.

    Args:
        frontend: has the engine; used in the loop that the app runs in.
        served_model_name: what clients call the model.
        options: the engine's options, for `/server_info`.
        chat: how chats are read and written; None: as the model's template says.
        max_body_bytes: larger requests are refused with 413.
        access: the API keys, and what they open; None: everybody may do everything.
        limiter: how much each caller may ask for; None: any amount.
        cors_origins: whose pages may read the answers in a browser; `*`: all.
        strict_fields: whether a field that no endpoint knows is refused, instead of told of.
        health_timeout: seconds for which a part of the engine may be silent.
        observation: who hears of each request, beside the metrics; None: nobody.
        connections: of the server, for the metrics.
        responses: keeps those that clients may come back to; None: one of the default size.
        bodies: reads large bodies while streams go on; None: they wait meanwhile.
    """
    app = FastAPI(title="Phloem", version=version())
    chat = chat or ChatOptions()
    if chat.chat_template is not None:
        frontend.tokenizer = frontend.tokenizer.with_chat_template(chat.chat_template)
    observation = observation or Observation()
    metrics = Metrics(served_model_name, observation.startup_seconds, connections)
    access = access or Access(KeyRing())
    install_handlers(app)
    limiter = limiter or Limiter(UNLIMITED)
    app.add_middleware(Gate, access=access, max_body_bytes=max_body_bytes, limiter=limiter)
    _surround(app, cors_origins, metrics, observation)
    service = Service(
        frontend,
        metrics,
        served_model_name,
        TokenNames(frontend.tokenizer),
        Generation(frontend, metrics),
        max_body_bytes,
        limiter,
        None if strict_fields else UnknownFields(),
        chat=ChatSetup.of(chat, frontend.tokenizer),
        responses=responses or ResponseStore(),
        bodies=bodies,
    )
    info = {"version": version(), "options": dict(options or {})}
    app.include_router(
        operation_router(
            frontend, metrics, served_model_name, info, health_timeout, max_body_bytes, bodies
        )
    )
    for add in ADDERS:
        add(app, service)
    # The second takes every path below `/ui/` that nothing else has.
    add_inspection(app, service)
    add_ui(app, service)
    describe(app, BODIES, keys_wanted=access.keys.has_callers)
    return app


def _surround(
    app: FastAPI, cors_origins: Sequence[str], metrics: Metrics, observation: Observation
) -> None:
    """Add the layers around the gate; the last one is the outermost."""
    if cors_origins:
        app.add_middleware(Cors, origins=cors_origins)
    if observation.keep_texts:
        app.add_middleware(Excerpts)
    app.add_middleware(Surround, metrics=metrics, watchers=(metrics, *observation.watchers))


ADDERS = (
    add_chat,
    add_completions,
    add_embeddings,
    add_grammar_check,
    add_messages,
    add_native,
    add_responses,
    add_tokenization,
)
BODIES = (
    *(ChatRequest, CompletionRequest, GenerateRequest, GrammarCheckRequest),
    *(CountRequest, MessagesRequest, ResponseRequest),
    *EMBEDDING_BODIES,
    *TOKENIZATION_BODIES,
    *OPERATION_BODIES,
)
