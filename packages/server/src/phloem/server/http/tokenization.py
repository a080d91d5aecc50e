"""`POST /tokenize` and `/detokenize`: what the server makes of a text, a chat or tokens.

Owns the bounds on such work, which nobody's limits count: it is done in a thread where it would
take long, and only for so many requests at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any

import msgspec
from fastapi import FastAPI, Request
from starlette.responses import Response

from phloem.scheduler import checked_prompt
from phloem.server.http.chat_protocol import ChatRequest, ToolSpec
from phloem.server.http.chat_request import prepare_chat
from phloem.server.http.describe import body_of
from phloem.server.http.errors import ApiError, refusing
from phloem.server.http.operation import check_model
from phloem.server.http.prepare import apart, text_size
from phloem.server.http.service import Service
from phloem.server.http.tenancy import caller_of
from phloem.server.tokenizer import Tokenizer

MAX_TEXTS = 2048
"""Texts, or lists of tokens, in one request."""
MAX_CHARACTERS = 1_000_000
"""In all of them together: half a second of work."""
MAX_TOKENS = 1_000_000
_AT_A_TIME = 2
"""Requests with long texts that are worked on; others wait, so that generating ones get threads.
"""
_LONG = 20_000
"""Characters or tokens that make one such."""


class TokenizeRequest(msgspec.Struct, kw_only=True):
    """The body of `POST /tokenize`."""

    prompt: str | list[str] | None = None
    messages: list[Any] | None = None
    """A chat instead of a prompt, which the model's chat template makes into one."""
    tools: list[ToolSpec] | None = None
    """That the chat shows to the model."""
    chat_template: str | None = None
    """This and the next ones are as in chats: see `phloem.server.http.chat_protocol`."""
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    reasoning_effort: str | None = None
    model: str | None = None
    add_special_tokens: bool | None = None
    """Those that the model wants around a text; by default they are added, as to any prompt. A chat
    template writes all of them itself."""
    return_token_strs: bool | None = None
    """Whether the vocabulary's own spelling of each token comes too."""


_OF_CHATS = (
    "tools",
    "chat_template",
    "chat_template_kwargs",
    "add_generation_prompt",
    "continue_final_message",
    "reasoning_effort",
)


class DetokenizeRequest(msgspec.Struct, kw_only=True):
    """The body of `POST /detokenize`."""

    tokens: list[Any]
    """Token ids, or lists of token ids."""
    model: str | None = None
    skip_special_tokens: bool | None = None
    """Whether tokens that are no text are left out; the default."""


BODIES = (TokenizeRequest, DetokenizeRequest)


def add_tokenization(app: FastAPI, service: Service) -> None:
    """Add the routes."""
    turns = asyncio.Semaphore(_AT_A_TIME)

    async def worked(size: int, work: Callable[..., bytes], *args: Any) -> Response:
        async with AsyncExitStack() as stack:
            if size >= _LONG:
                await stack.enter_async_context(turns)
            return Response(await apart(size, work, *args), media_type="application/json")

    @app.post("/v1/tokenize", openapi_extra=body_of(TokenizeRequest))
    @app.post("/tokenize", openapi_extra=body_of(TokenizeRequest))
    async def tokenize(request: Request) -> Response:
        """The tokens of a prompt, of several, or of a chat."""
        given = await service.read(request, TokenizeRequest, {})
        check_model(given.model, service.model)
        if (given.prompt is None) == (given.messages is None):
            raise ApiError("give either prompt or messages", param="prompt")
        if given.prompt is None:
            return await _of_chat(service, request, given)
        for name in _OF_CHATS:
            if getattr(given, name) is not None:
                raise ApiError(f"{name} needs messages, and a prompt is given", param=name)
        if not isinstance(given.prompt, str):
            _check_entries(given.prompt, "prompt")
        size = text_size(given.prompt)
        _check_size(size, MAX_CHARACTERS, "characters", "prompt")
        return await worked(size, _tokenized, service, given, given.prompt)

    @app.post("/v1/detokenize", openapi_extra=body_of(DetokenizeRequest))
    @app.post("/detokenize", openapi_extra=body_of(DetokenizeRequest))
    async def detokenize(request: Request) -> Response:
        """The text of tokens."""
        given = await service.read(request, DetokenizeRequest, {}, most_entries=MAX_TOKENS)
        check_model(given.model, service.model)
        nested = bool(given.tokens) and isinstance(given.tokens[0], list)
        if nested:
            _check_entries(given.tokens, "tokens")
            nested = set(map(type, given.tokens)) == {list}
        size = sum(map(len, given.tokens)) if nested else len(given.tokens)
        _check_size(size, MAX_TOKENS, "tokens", "tokens")
        return await worked(size, _detokenized, service, given, nested)


async def _of_chat(service: Service, request: Request, given: TokenizeRequest) -> Response:
    """What the chat endpoint makes of the same messages."""
    if given.add_special_tokens:
        raise ApiError(
            "add_special_tokens is true, but a chat template writes the special tokens itself: "
            "leave it out",
            param="add_special_tokens",
        )
    chat = ChatRequest(
        messages=given.messages, **{name: getattr(given, name) for name in _OF_CHATS}
    )
    prepared = await prepare_chat(service, chat, caller_of(request))
    ids = prepared.requests[0].prompt_ids
    body = await apart(len(ids), _body, service, given, [list(ids)], True)
    return Response(body, media_type="application/json")


def _check_entries(given: Sequence[Any], field: str) -> None:
    if len(given) > MAX_TEXTS:
        raise ApiError(
            f"{field} has {len(given)} entries and may have {MAX_TEXTS}: send fewer at once",
            param=field,
        )


def _check_size(size: int, most: int, what: str, field: str) -> None:
    if size > most:
        raise ApiError(
            f"{field} has {size} {what} and may have {most}: send it in parts",
            param=field,
        )


def _tokenized(service: Service, given: TokenizeRequest, prompt: str | list[str]) -> bytes:
    texts = [prompt] if isinstance(prompt, str) else prompt
    tokenizer, special = service.frontend.tokenizer, given.add_special_tokens is not False
    with refusing("prompt"):
        ids = [tokenizer.encode(text, special) for text in texts]
    return _body(service, given, ids, single=isinstance(prompt, str))


def _body(
    service: Service, given: TokenizeRequest, ids: Sequence[Sequence[int]], single: bool
) -> bytes:
    counts = list(map(len, ids))
    content: dict[str, Any] = {
        "tokens": ids[0] if single else ids,
        "count": counts[0] if single else counts,
        "max_model_len": service.frontend.limits.context_len,
    }
    if given.return_token_strs:
        strings = [_spelled(service.frontend.tokenizer, each) for each in ids]
        content["token_strs"] = strings[0] if single else strings
    return msgspec.json.encode(content)


def _spelled(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str | None]:
    return [tokenizer.id_to_token(token) for token in ids]


def _detokenized(service: Service, given: DetokenizeRequest, nested: bool) -> bytes:
    lists = given.tokens if nested else [given.tokens]
    for index, ids in enumerate(lists):
        if ids:
            with refusing(f"tokens[{index}]" if nested else "tokens"):
                checked_prompt(ids, service.frontend.limits.vocab_size)
    skip = given.skip_special_tokens is not False
    texts = service.frontend.tokenizer.decode_each(lists, skip)
    return msgspec.json.encode({"text": texts if nested else texts[0]})
