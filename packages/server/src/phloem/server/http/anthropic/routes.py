"""The routes of the Messages API."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import replace
from typing import TypeVar

from fastapi import FastAPI, Request
from starlette.responses import Response

from phloem.server.http.answer_parts import ChatHead
from phloem.server.http.anthropic.caching import Marked, common_length, marked
from phloem.server.http.anthropic.errors import MESSAGES
from phloem.server.http.anthropic.form import Head, MessageForm
from phloem.server.http.anthropic.protocol import (
    IGNORED_IN_MESSAGES,
    UNSUPPORTED_IN_MESSAGES,
    CountRequest,
    MessagesRequest,
)
from phloem.server.http.anthropic.translate import CHAT_NAMES, chat_of
from phloem.server.http.chat_request import prepare_as_chat, prepare_chat
from phloem.server.http.describe import body_of
from phloem.server.http.errors import ApiError, json_response
from phloem.server.http.operation import check_model
from phloem.server.http.prepare import Prepared
from phloem.server.http.service import Service
from phloem.server.http.tenancy import Caller, caller_of, tell_tenant
from phloem.server.http.translation import speaking_of

T = TypeVar("T", bound=CountRequest)


def add_messages(app: FastAPI, service: Service) -> None:
    """Add the routes."""

    @app.post(MESSAGES, openapi_extra=body_of(MessagesRequest))
    async def create_message(request: Request) -> Response:
        """Anthropic's messages."""
        asked = await _read(service, request, MessagesRequest)
        caller = caller_of(request)
        tell_tenant(asked, caller)
        return service.answer(await prepare_message(service, asked, caller))

    @app.post(f"{MESSAGES}/count_tokens", openapi_extra=body_of(CountRequest))
    async def count_tokens(request: Request) -> Response:
        """How many tokens the prompt of a message would have."""
        asked = await _read(service, request, CountRequest)
        prompt = await _prompt(service, asked, caller_of(request))
        return json_response({"input_tokens": len(prompt)})


async def prepare_message(service: Service, asked: MessagesRequest, caller: Caller) -> Prepared:
    """The sequence of a message.

    Raises:
        ApiError: it cannot be served.
    """
    kept = marked(asked)
    thinking = asked.thinking
    head = Head(
        f"msg_{uuid.uuid4().hex}",
        service.model,
        None if kept is None else kept.ttl,
        show_thinking=thinking is None or thinking.display != "omitted",
    )
    # In a thread: long conversations take long enough for streams to feel it.
    chat = await asyncio.to_thread(chat_of, asked)

    def form(chat_head: ChatHead) -> MessageForm:
        return MessageForm(head, chat_head)

    made = await prepare_as_chat(service, chat, caller, form, head.id, CHAT_NAMES)
    if kept is None:
        return made
    (request,) = made.requests
    head.marked_tokens = await _length(service, kept, list(request.prompt_ids), caller)
    retained = replace(request, retain_seconds=kept.seconds, retain_tokens=head.marked_tokens)
    return replace(made, requests=[retained])


async def _read(service: Service, request: Request, shape: type[T]) -> T:
    asked = await service.read(request, shape, UNSUPPORTED_IN_MESSAGES, IGNORED_IN_MESSAGES)
    check_model(asked.model, service.model)
    return asked


async def _prompt(service: Service, asked: CountRequest, caller: Caller) -> list[int]:
    chat = await asyncio.to_thread(chat_of, asked)
    with speaking_of(CHAT_NAMES):
        prepared = await prepare_chat(service, chat, caller)
    return list(prepared.requests[0].prompt_ids)


async def _length(service: Service, kept: Marked, prompt: list[int], caller: Caller) -> int:
    """How many tokens the marked beginning of a prompt has."""
    if kept.beginning is None:
        return len(prompt)
    try:
        beginning = await _prompt(service, kept.beginning, caller)
    except ApiError:
        # A template that takes no such beginning: all of it is no worse a guess than none.
        return len(prompt)
    return common_length(prompt, beginning)
