"""The routes of the Responses API."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from fastapi import FastAPI, Request
from starlette.responses import Response

from phloem.server.http.answer_parts import ChatHead
from phloem.server.http.chat_protocol import ChatRequest
from phloem.server.http.chat_request import prepare_as_chat
from phloem.server.http.describe import body_of
from phloem.server.http.errors import ApiError, json_response
from phloem.server.http.operation import check_model
from phloem.server.http.prepare import Prepared
from phloem.server.http.responses.form import Head, ResponseForm
from phloem.server.http.responses.items import new_id
from phloem.server.http.responses.protocol import (
    IGNORED_IN_RESPONSES,
    UNSUPPORTED_IN_RESPONSES,
    ResponseRequest,
)
from phloem.server.http.responses.store import Owner, ResponseStore, Stored, history_of
from phloem.server.http.responses.translate import CHAT_NAMES, chat_of, items_of
from phloem.server.http.service import Service
from phloem.server.http.tenancy import Caller, caller_of, tell_tenant
from phloem.server.http.translation import shown

_PATH = "/v1/responses"
_MOST_LISTED = 100
_LISTED = 20


def add_responses(app: FastAPI, service: Service) -> None:
    """Add the routes."""
    kept = service.responses

    @app.post(_PATH, openapi_extra=body_of(ResponseRequest))
    async def create_response(request: Request) -> Response:
        """OpenAI's responses."""
        asked = await _read(service, request)
        return service.answer(await prepare_response(service, asked, caller_of(request), kept))

    @app.post(f"{_PATH}/input_tokens", openapi_extra=body_of(ResponseRequest))
    async def count_input_tokens(request: Request) -> Response:
        """How many tokens the prompt of a response would have."""
        asked = await _read(service, request)
        prepared = await prepare_response(service, asked, caller_of(request), kept)
        tokens = len(prepared.requests[0].prompt_ids)
        return json_response({"object": "response.input_tokens", "input_tokens": tokens})

    _add_kept(app, kept)


def _add_kept(app: FastAPI, kept: ResponseStore) -> None:
    """Add what is for responses that have ended."""

    @app.get(f"{_PATH}/{{id}}")
    async def retrieve_response(id: str, request: Request, stream: bool = False) -> Response:
        """A response that is kept."""
        if stream:
            raise ApiError(
                "stream is true, but a response that is kept has ended: leave it out",
                param="stream",
                code="unsupported_parameter",
            )
        stored = kept.get(_owner(caller_of(request)), id)
        return Response(stored.response, media_type="application/json")

    @app.delete(f"{_PATH}/{{id}}")
    async def delete_response(id: str, request: Request) -> Response:
        """Keep a response no longer."""
        kept.delete(_owner(caller_of(request)), id)
        return json_response({"id": id, "object": "response", "deleted": True})

    @app.post(f"{_PATH}/{{id}}/cancel")
    async def cancel_response(id: str, request: Request) -> Response:
        """Refused: this is for responses in the background, of which there are none."""
        kept.get(_owner(caller_of(request)), id)
        raise ApiError(
            f"response {shown(id)} was not made in the background: it has ended, and a response "
            "that has not is cancelled by leaving its connection",
            code="response_not_cancellable",
        )

    @app.get(f"{_PATH}/{{id}}/input_items")
    async def list_input_items(
        id: str,
        request: Request,
        after: str | None = None,
        limit: int = _LISTED,
        order: str = "desc",
    ) -> Response:
        """The items that a response was asked with."""
        stored = kept.get(_owner(caller_of(request)), id)
        return json_response(_page(msgspec.json.decode(stored.input), after, limit, order))


async def prepare_response(
    service: Service, asked: ResponseRequest, caller: Caller, store: ResponseStore
) -> Prepared:
    """The sequence of a response.

    Raises:
        ApiError: it cannot be served.
    """
    owner = _owner(caller)
    head = Head(new_id("resp"), service.model, asked)
    # In a thread: long histories take long enough for streams to feel it.
    chat, items = await asyncio.to_thread(
        _translated, asked, store.chain(owner, asked.previous_response_id)
    )

    def keep(response: dict[str, Any]) -> None:
        if asked.store is not False:
            made = Stored(msgspec.json.encode(response), items, asked.previous_response_id)
            store.put(owner, head.id, made)

    def form(chat_head: ChatHead) -> ResponseForm:
        return ResponseForm(head, chat_head, keep)

    return await prepare_as_chat(service, chat, caller, form, head.id, CHAT_NAMES)


async def _read(service: Service, request: Request) -> ResponseRequest:
    asked = await service.read(
        request, ResponseRequest, UNSUPPORTED_IN_RESPONSES, IGNORED_IN_RESPONSES
    )
    tell_tenant(asked, caller_of(request))
    check_model(asked.model, service.model)
    return asked


def _translated(asked: ResponseRequest, chain: list[Stored]) -> tuple[ChatRequest, bytes]:
    """A request as a chat, and its items as they are kept."""
    chat = chat_of(asked, history_of(chain))
    taken: set[str] = set()
    return chat, msgspec.json.encode([_with_id(item, taken) for item in items_of(asked.input)])


def _owner(caller: Caller) -> Owner:
    return Owner(caller.key_id, caller.tenant)


def _with_id(item: dict[str, Any], taken: set[str]) -> dict[str, Any]:
    """An item of an input as it is listed: with an id, and a message's content as parts.

    The id is the client's own where that is one, and is not `taken` by an item before.
    """
    kind = item.get("type", "message")
    id = item.get("id")
    if not isinstance(id, str) or not id or id in taken:
        id = new_id("msg" if kind == "message" else "item")
    taken.add(id)
    made = {"id": id, "type": kind}
    if kind == "message":
        content = item["content"]
        if isinstance(content, str):
            part = "output_text" if item["role"] == "assistant" else "input_text"
            content = [{"type": part, "text": content}]
        made |= {"status": "completed"}
        item = item | {"content": content}
    return made | {k: v for k, v in item.items() if v is not None and k != "id"}


def _page(items: list[dict[str, Any]], after: str | None, limit: int, order: str) -> dict[str, Any]:
    if not 1 <= limit <= _MOST_LISTED:
        raise ApiError(f"limit is {limit}: give 1 to {_MOST_LISTED}", param="limit")
    if order not in ("asc", "desc"):
        raise ApiError(f"order is {shown(order)}: give asc or desc", param="order")
    ordered = items if order == "asc" else items[::-1]
    ids = [item["id"] for item in ordered]
    if after is not None and after not in ids:
        raise ApiError(f"after is {shown(after)}, which is none of the items", param="after")
    begin = 0 if after is None else ids.index(after) + 1
    page = ordered[begin : begin + limit]
    return {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": begin + limit < len(ordered),
    }
