"""`POST /v1/chat/completions`: a chat to the sequences that it asks for."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace

from fastapi import FastAPI, Request
from starlette.responses import Response

from phloem.server.constraints import ConstraintRequest, check_one
from phloem.server.frontend import Frontend
from phloem.server.http.answer_parts import AnswerParts, ChatHead, Reading
from phloem.server.http.answer_parts_form import PartsForm
from phloem.server.http.chat import ChatForm
from phloem.server.http.chat_prompt import (
    ChatPrompt,
    chat_prompt,
    refuse_template_fields,
    work_of,
)
from phloem.server.http.chat_protocol import UNSUPPORTED_IN_CHAT, ChatRequest
from phloem.server.http.chat_thinking import check_budget, check_can_bind, thinking_of
from phloem.server.http.constraints import asked_constraint
from phloem.server.http.describe import body_of
from phloem.server.http.errors import ApiError, refusing
from phloem.server.http.generation import Form
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
from phloem.server.http.translation import speaking_of
from phloem.server.jobs import make_jobs
from phloem.server.parsers import OutputParser
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
    check_budget(service.chat, request.max_thinking_tokens)
    top = _chat_logprobs(request)
    max_tokens = _chat_max_tokens(request)
    # In a thread: large schemas take long enough for streams to feel it.
    tools = await asyncio.to_thread(tool_use, request) if request.tools else tool_use(request)
    constraint = await _chat_constraint(frontend, request, tools)
    if constraint is not None:
        check_can_bind(service.chat, constraint.field)
    prompt = await _chat_prompt(service, request, tools)
    thinking = thinking_of(service.chat, prompt.before, request.max_thinking_tokens, constraint)
    fields = sampling_fields(request, max_tokens) | {"top_logprobs": top}
    if max_tokens is None:
        fields["max_new_tokens"] = room(frontend, prompt.ids)
    with refusing(names=ENGINE_NAMES):
        namespace = namespace_of(caller, request.cache_salt)
        jobs, _ = make_jobs(frontend.tokenizer, None, fields, [prompt.ids], namespace)
    id = f"{CHAT_ID}{uuid.uuid4().hex}"
    reading = _reading(service, request, tools, prompt, constraint)
    head = ChatHead(
        id,
        service.model,
        request.n or 1,
        include_usage(request),
        None if top is None else names,
        [prompt.ids],
        lambda: AnswerParts(reading),
        reading.is_plain,
        bool(request.return_token_ids),
    )
    requests = requests_of(id, jobs, request)
    if not reading.is_plain:
        shown = service.chat.shown_ids
        requests = [replace(each, shown_ids=shown, thinking=thinking) for each in requests]
    field = "messages" if request.input_ids is None else "input_ids"
    return prepared(requests, form_of(head), request, field, constraint)


async def prepare_as_chat(
    service: Service,
    chat: ChatRequest,
    caller: Caller,
    form_of: Callable[[ChatHead], Form],
    id: str,
    names: Mapping[str, str],
) -> Prepared:
    """What another API's request comes to, made into a chat: its answer is `id`, and errors call a
    chat's fields by `names`, as that API does.

    Raises:
        ApiError: it cannot be served.
    """
    with speaking_of(names):
        made = await prepare_chat(service, chat, caller, form_of)
    return replace(
        made,
        requests=[replace(request, rid=id) for request in made.requests],
        prompt=names.get(made.prompt, made.prompt),
        constraints=[
            each and replace(each, field=names.get(each.field, each.field))
            for each in made.constraints
        ],
    )


async def _chat_prompt(service: Service, request: ChatRequest, tools: ToolUse) -> ChatPrompt:
    """The prompt, which the template makes of the messages where its ids are not given."""
    frontend = service.frontend
    given = given_ids(request, "messages", request.messages is not None)
    if given is not None:
        refuse_template_fields(request)
    else:
        work = work_of(request.messages or (), tools.shown)
        with refusing("messages"):
            return await apart(work, chat_prompt, frontend, service.chat, request, tools.shown)
    if len(given) != 1:
        raise ApiError(
            f"input_ids has {len(given)} lists, but a chat has one prompt: give its ids",
            param="input_ids",
        )
    (ids,) = given
    return ChatPrompt(ids, frontend.tokenizer.decode(ids[-16:], skip_special_tokens=False))


def _reading(
    service: Service,
    request: ChatRequest,
    tools: ToolUse,
    prompt: ChatPrompt,
    constraint: ConstraintRequest | None,
) -> Reading:
    """How the answer is read; the one function that must be called does not end it."""
    notation, names = service.chat.notation, [tool.function.name for tool in request.tools or ()]
    # What a constraint makes is what was asked for, and no call, whatever it looks like.
    called = names if tools.shown and not _is_whole(constraint) else []
    made_sure = _made_sure(tools)
    separate = request.separate_reasoning is not False

    def new_parser() -> OutputParser:
        return notation.parser(prompt.before, called, made_sure, separate=separate)

    return Reading(
        new_parser,
        service.names,
        frozenset(service.chat.shown_ids),
        is_plain=made_sure is None and notation.is_plain(prompt.before, called),
        call_is_an_end=tools.named is None,
        one_call=request.parallel_tool_calls is False,
        stream_reasoning=request.stream_reasoning is not False,
    )


def _is_whole(constraint: ConstraintRequest | None) -> bool:
    """Whether a constraint is on all of a text; structural tags are parts of a free one."""
    return constraint is not None and constraint.constraint.kind != "structural_tag"


def _made_sure(tools: ToolUse) -> Callable[[], OutputParser] | None:
    """Makes what reads calls that a constraint makes sure of."""
    named = tools.named
    if tools.constraint is None:
        return None
    return CallList if named is None else lambda: NamedCall(named)


async def _chat_constraint(
    frontend: Frontend, request: ChatRequest, tools: ToolUse
) -> ConstraintRequest | None:
    constraint = await asked_constraint(request, frontend.grammar.whitespace)
    if constraint is None or tools.constraint is None:
        return constraint or tools.constraint
    with refusing():
        check_one([constraint.field, "tool_choice"])
    return None


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
