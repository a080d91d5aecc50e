"""The bodies of `/generate` and of chats, as JSON has them and as the clients give them.

Owns both directions: a body from a method's arguments, and results from what a server sends. Fields
that are not here are passed over.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from phloem.server.client.results import (
    ChatAnswer,
    Embedded,
    Finish,
    FunctionCall,
    Generated,
    TokenLogprob,
)
from phloem.server.openai_wire import Delta, Event, Usage

_Pairs = list[tuple[float | None, int]]
"""Logprobs and their tokens."""


class FinishReason(msgspec.Struct):
    """Why an output ended."""

    type: str
    matched: str | int | None = None
    message: str | None = None
    status_code: int | None = None


class MetaInfo(msgspec.Struct):
    """What is said of an output beside its text."""

    id: str = ""
    finish_reason: FinishReason | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    retractions: int = 0
    timings: dict[str, float | None] | None = None
    output_token_logprobs: _Pairs | None = None
    output_top_logprobs: list[_Pairs | None] | None = None
    input_token_logprobs: _Pairs | None = None
    input_top_logprobs: list[_Pairs | None] | None = None


class Result(msgspec.Struct):
    """A result of `/generate`, or an event of its stream."""

    text: str = ""
    output_ids: list[int] = []
    meta_info: MetaInfo = msgspec.field(default_factory=MetaInfo)
    error: Any = None


def generated(result: Result) -> Generated:
    """A result as the clients give it."""
    meta, reason = result.meta_info, result.meta_info.finish_reason
    return Generated(
        request_id=meta.id,
        text=result.text,
        token_ids=result.output_ids,
        finish=None
        if reason is None
        else Finish(reason.type, reason.matched, reason.message, reason.status_code),
        prompt_tokens=meta.prompt_tokens,
        completion_tokens=meta.completion_tokens,
        cached_tokens=meta.cached_tokens,
        retractions=meta.retractions,
        timings={k: v for k, v in (meta.timings or {}).items() if v is not None},
        logprobs=_logprobs(meta.output_token_logprobs, meta.output_top_logprobs),
        prompt_logprobs=_logprobs(meta.input_token_logprobs, meta.input_top_logprobs),
    )


def _logprobs(chosen: _Pairs | None, tops: list[_Pairs | None] | None) -> list[TokenLogprob]:
    pairs = chosen or []
    padded: Iterable[_Pairs | None] = tops or [None] * len(pairs)
    return [
        TokenLogprob(token, value, [(t, v) for v, t in top or () if v is not None])
        for (value, token), top in zip(pairs, padded)
    ]


def generate_body(
    prompt: str | None,
    sampling_params: Mapping[str, Any] | None,
    input_ids: Sequence[int] | None,
    options: Mapping[str, Any],
) -> dict[str, Any]:
    """The body of `/generate`; options that are None are left out.

    Raises:
        ValueError: there is not one prompt, or more than one output is wanted.
    """
    check_one((sampling_params or {}).get("n"))
    if (prompt is None) == (input_ids is None):
        raise ValueError("give either a prompt or its input_ids")
    given = {"text": prompt} if input_ids is None else {"input_ids": list(input_ids)}
    params = {} if not sampling_params else {"sampling_params": dict(sampling_params)}
    return {**given, **params, **{k: v for k, v in options.items() if v is not None}}


def check_one(n: Any) -> None:
    """Refuse an `n` that would bring several outputs, of which a result has room for one.

    Raises:
        ValueError: it is another than 1.
    """
    if n is not None and n != 1:
        raise ValueError(f"n is {n!r:.100}, and a result here is one output: call once for each")


class _Embedding(msgspec.Struct):
    embedding: str


class EmbeddingBody(msgspec.Struct):
    """An answer of `/v1/embeddings`, its vectors in base64."""

    data: list[_Embedding]
    usage: Usage


def embedding_body(
    inputs: str | Sequence[str] | Sequence[Sequence[int]], options: Mapping[str, Any]
) -> dict[str, Any]:
    """The body that asks for vectors, written in the way that is read fastest."""
    given = {name: value for name, value in options.items() if value is not None}
    return {"input": inputs, **given, "encoding_format": "base64"}


def embedded(body: EmbeddingBody) -> Embedded:
    """Vectors as the clients give them."""
    vectors = [
        np.frombuffer(base64.b64decode(each.embedding), dtype="<f4").tolist() for each in body.data
    ]
    return Embedded(vectors, body.usage.prompt_tokens or 0)


class Aborted(msgspec.Struct):
    """An answer of `/abort_request`."""

    aborted: int


class Model(msgspec.Struct):
    """A model that is served."""

    id: str
    max_model_len: int


class Models(msgspec.Struct):
    """An answer of `/v1/models`."""

    data: list[Model]


class _ChatChoice(msgspec.Struct):
    message: Delta
    finish_reason: str | None = None


class ChatBody(msgspec.Struct):
    """A whole answer of `/v1/chat/completions`."""

    choices: list[_ChatChoice]
    id: str = ""
    usage: Usage | None = None


def chat_answer(body: ChatBody) -> ChatAnswer:
    """The first choice of an answer."""
    choice = body.choices[0]
    return _answer(body.id, choice.message, choice.finish_reason, body.usage)


def chat_part(event: Event) -> ChatAnswer:
    """What an event of a stream adds; possibly only counts."""
    if not event.choices:
        return _answer(event.id or "", Delta(), None, event.usage)
    choice = event.choices[0]
    return _answer(event.id or "", choice.delta or Delta(), choice.finish_reason, event.usage)


def _answer(id: str, delta: Delta, finish_reason: str | None, usage: Usage | None) -> ChatAnswer:
    counts = usage or Usage()
    calls = [
        FunctionCall(
            position if call.index is None else call.index,
            call.id,
            None if call.function is None else call.function.name,
            "" if call.function is None else call.function.arguments or "",
        )
        for position, call in enumerate(delta.tool_calls or ())
    ]
    return ChatAnswer(
        request_id=id,
        text=delta.content or "",
        reasoning=delta.reasoning_content or "",
        tool_calls=calls,
        finish_reason=finish_reason,
        prompt_tokens=counts.prompt_tokens,
        completion_tokens=counts.completion_tokens,
        cached_tokens=counts.cached_tokens,
    )
