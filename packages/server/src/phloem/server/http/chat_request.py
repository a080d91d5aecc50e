"""`POST /v1/chat/completions`: a chat to the sequences that it asks for."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from fastapi import FastAPI, Request
from starlette.responses import Response

from phloem.server.constraints import ConstraintRequest, check_one
from phloem.server.frontend import Frontend
from phloem.server.http.answer_parts import AnswerParts, ChatHead, Reading
from phloem.server.http.answer_parts_form import PartsForm
from phloem.server.http.chat import ChatForm, plain_messages
from phloem.server.http.chat_protocol import UNSUPPORTED_IN_CHAT, ChatRequest
from phloem.server.http.constraints import asked_constraint
from phloem.server.http.describe import body_of
from phloem.server.http.errors import ApiError, refusing
from phloem.server.http.fitting import check_fits
from phloem.server.http.generation import Form
from phloem.server.http.logprobs import TokenNames
from phloem.server.http.operation import check_model
from phloem.server.http.prepare import (
    CHAT_ID,
    ENGINE_NAMES,
    Prepared,
    apart,
    given_ids,
    include_usage,
    prepared,
    requests_of,
    room,
    sampling_fields,
)
from phloem.server.http.protocol import IGNORED
from phloem.server.http.service import Service
from phloem.server.http.tenancy import Caller, caller_of, namespace_of, tell_tenant
from phloem.server.http.tools import ToolUse, tool_use
from phloem.server.jobs import make_jobs
from phloem.server.parsers import PlainText
from phloem.server.parsers.constrained import CallList, NamedCall


def add_chat(app: FastAPI, service: Service) -> None:
    """Add the route."""

    @app.post("/v1/chat/completions", openapi_extra=body_of(ChatRequest))
    async def chat_completions(request: Request) -> Response:
        """OpenAI's chat completions."""
        given = await service.read(request, ChatRequest, UNSUPPORTED_IN_CHAT, IGNORED)
        caller = caller_of(request)
        tell_tenant(given, caller)
        check_model(given.model, service.model)
        return service.answer(await prepare_chat(service, given, caller))


def openai_form(head: ChatHead) -> Form:
    """OpenAI's chat objects; the quick ones where all text is content."""
    if head.token_ids or not head.plain:
        return PartsForm(head)
    return ChatForm(head.id, head.model, head.n, head.include_usage, head.names)


async def prepare_chat(
    service: Service,
    request: ChatRequest,
    caller: Caller,
    form_of: Callable[[ChatHead], Form] = openai_form,
) -> Prepared:
    """The sequences of a chat request, and how they are answered, which `form_of` decides: other
    endpoints make their bodies into a `ChatRequest` and have forms of their own.

    Raises:
        ApiError: it cannot be served.
    """
    frontend = service.frontend
    names = service.names.by_ids(request.return_tokens_as_token_ids)
    top = _chat_logprobs(request)
    max_tokens = _chat_max_tokens(request)
    # In a thread: large schemas take long enough for streams to feel it.
    tools = await asyncio.to_thread(tool_use, request) if request.tools else tool_use(request)
    constraint = _chat_constraint(frontend, request, tools)
    prompt = await _chat_prompt(frontend, request, tools)
    fields = sampling_fields(request, max_tokens) | {"top_logprobs": top}
    if max_tokens is None:
        fields["max_new_tokens"] = room(frontend, prompt)
    with refusing(names=ENGINE_NAMES):
        jobs, _ = make_jobs(
            frontend.tokenizer, None, fields, [prompt], namespace_of(caller, request.cache_salt)
        )
    id = f"{CHAT_ID}{uuid.uuid4().hex}"
    reading = _reading(tools, names)
    head = ChatHead(
        id,
        service.model,
        request.n or 1,
        include_usage(request),
        None if top is None else names,
        [prompt],
        lambda: AnswerParts(reading),
        tools.constraint is None,
        bool(request.return_token_ids),
    )
    requests = requests_of(id, jobs, request)
    field = "messages" if request.input_ids is None else "input_ids"
    return prepared(requests, form_of(head), request, field, constraint)


async def _chat_prompt(frontend: Frontend, request: ChatRequest, tools: ToolUse) -> list[int]:
    """The ids of the prompt, which the template makes of the messages where they are not given."""
    given = given_ids(request, "messages", request.messages is not None)
    if given is None:
        with refusing("messages"):
            messages = plain_messages(request.messages or ())
            size = sum(len(message["content"]) for message in messages)
            return await apart(size, _chat_ids, frontend, messages, tools.shown)
    if len(given) != 1:
        raise ApiError(
            f"input_ids has {len(given)} lists, but a chat has one prompt: give its ids",
            param="input_ids",
        )
    return given[0]


def _reading(tools: ToolUse, names: TokenNames) -> Reading:
    if tools.constraint is None:
        return Reading(PlainText, names)
    named = tools.named
    if named is None:
        return Reading(CallList, names)
    return Reading(lambda: NamedCall(named), names, call_is_an_end=False)


def _chat_constraint(
    frontend: Frontend, request: ChatRequest, tools: ToolUse
) -> ConstraintRequest | None:
    constraint = asked_constraint(request, frontend.grammar.whitespace)
    if constraint is None or tools.constraint is None:
        return constraint or tools.constraint
    with refusing():
        check_one([constraint.field, "tool_choice"])
    return None


def _chat_ids(
    frontend: Frontend,
    messages: Sequence[dict[str, Any]],
    tools: Sequence[dict[str, Any]] | None,
) -> list[int]:
    text = frontend.tokenizer.render_chat(messages, tools=tools)
    check_fits(frontend.tokenizer, frontend.limits, text, "messages", add_special_tokens=False)
    # The template writes all special tokens itself.
    return frontend.tokenizer.encode(text, add_special_tokens=False)


def _chat_logprobs(request: ChatRequest) -> int | None:
    """How many candidates to show for each token; None: no logprobs."""
    if request.logprobs:
        return request.top_logprobs or 0
    if request.top_logprobs:
        raise ApiError("top_logprobs needs logprobs to be true", param="top_logprobs")
    return None


def _chat_max_tokens(request: ChatRequest) -> int | None:
    new, old = request.max_completion_tokens, request.max_tokens
    if None not in (new, old) and new != old:
        raise ApiError(
            f"max_completion_tokens is {new} and max_tokens, its old name, is {old}: give one",
            param="max_completion_tokens",
        )
    return old if new is None else new
