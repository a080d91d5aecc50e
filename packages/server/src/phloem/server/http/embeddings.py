"""`POST /v1/embeddings` and `POST /encode`: texts to vectors, as OpenAI has them and as the engine.

Owns the forms in which texts and vectors come and go. What a vector is, is the engine's concern:
pooled hidden states of the served model, whatever that was trained for.
"""

from __future__ import annotations

import asyncio
import base64
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
from fastapi import FastAPI, Request
from starlette.responses import Response
from starlette.types import Scope, Send

from phloem.scheduler import PoolingMode, checked_new_tokens, checked_prompt
from phloem.server.embeddings import Vector, check_dimensions, embedding_of
from phloem.server.frontend import Frontend, GenerationRequest
from phloem.server.http.describe import body_of
from phloem.server.http.errors import ApiError, raise_if_failed, refusing
from phloem.server.http.fitting import check_fits
from phloem.server.http.generation import Answer, send_json
from phloem.server.http.operation import check_model
from phloem.server.http.prepare import apart, sequence_id, text_size
from phloem.server.http.protocol import IGNORED, NEVER, OFF
from phloem.server.http.request_id import checked_rids
from phloem.server.http.service import Service
from phloem.server.http.tenancy import caller_of, namespace_of, tell_tenant
from phloem.server.jobs import POOLED
from phloem.server.messages import TextNews
from phloem.server.results import ResultBuilder

MAX_INPUTS = 2048
"""Texts in one request."""
_MANY_NUMBERS = 10_000
"""Numbers whose writing would hold up other streams for milliseconds."""


class EmbeddingFields(msgspec.Struct, kw_only=True):
    """What both endpoints take besides the texts."""

    encoding_format: Literal["float", "base64"] | None = None
    """Numbers, or base64 of little-endian float32."""
    dimensions: int | None = None
    """Keep so many numbers, the first ones, before the vector is normalised."""
    pooling: PoolingMode | None = None
    """"mean" of all tokens' hidden states, the default, or "last", the last token's."""
    normalize: bool | None = None
    """To Euclidean length 1; the default."""
    cache_salt: str | None = None
    timeout: float | None = None
    queue_timeout: float | None = None
    priority: int | None = None
    tenant: str | None = None


class EmbeddingRequest(EmbeddingFields, kw_only=True):
    """The body of `POST /v1/embeddings`."""

    input: str | list[Any]
    """A text, texts, token ids, or lists of token ids."""
    model: str | None = None


class EncodeRequest(EmbeddingFields, kw_only=True):
    """The body of `POST /encode`."""

    text: str | list[str] | None = None
    input_ids: list[Any] | None = None
    rid: str | list[str] | None = None
    """Names the texts, for `/abort_request`."""


BODIES = (EmbeddingRequest, EncodeRequest)

UNSUPPORTED: Mapping[str, Collection[Any]] = {
    # Of other engines.
    "add_special_tokens": (True,),
    "audio_data": NEVER,
    "embed_dtype": ("float32",),
    "endianness": ("little",),
    "image_data": NEVER,
    "input_embeds": NEVER,
    "lora_path": NEVER,
    "messages": NEVER,
    "modalities": NEVER,
    "sampling_params": NEVER,
    "stream": OFF,
    "truncate_prompt_tokens": NEVER,
    "video_data": NEVER,
}


def add_embeddings(app: FastAPI, service: Service) -> None:
    """Add the routes."""

    @app.post("/v1/embeddings", openapi_extra=body_of(EmbeddingRequest))
    async def embeddings(request: Request) -> Response:
        """OpenAI's embeddings."""
        given = await service.read(request, EmbeddingRequest, UNSUPPORTED, IGNORED)
        check_model(given.model, service.model)
        texts = await _texts_of(service.frontend, given.input, "input")
        id = f"embd-{uuid.uuid4().hex}"
        work = _Work(service, request, given, texts, _named(id, len(texts.ids)))
        return Answer(lambda scope, send: work.run(scope, send, work.openai_body))

    @app.post("/encode", openapi_extra=body_of(EncodeRequest))
    async def encode(request: Request) -> Response:
        """The engine's own form of the same."""
        given = await service.read(request, EncodeRequest, UNSUPPORTED, IGNORED)
        if (given.text is None) == (given.input_ids is None):
            raise ApiError("give either text or input_ids", param="text")
        name = "text" if given.input_ids is None else "input_ids"
        texts = await _texts_of(service.frontend, getattr(given, name), name)
        work = _Work(service, request, given, texts, _given_rids(given.rid, len(texts.ids)))
        return Answer(lambda scope, send: work.run(scope, send, work.native_body))


@dataclass(frozen=True, slots=True)
class _Texts:
    """The texts of a request as tokens."""

    ids: Sequence[Sequence[int]]
    field: str
    """Where they stand in the request."""
    single: bool
    """Whether it is one text and no list."""

    def place(self, index: int) -> str:
        """What an error about one of them calls it."""
        return self.field if self.single else f"{self.field}[{index}]"


class _Work:
    """The making of one answer."""

    def __init__(
        self,
        service: Service,
        request: Request,
        given: EmbeddingFields,
        texts: _Texts,
        rids: Sequence[str],
    ) -> None:
        caller = caller_of(request)
        tell_tenant(given, caller)
        with refusing("dimensions"):
            check_dimensions(given.dimensions, service.frontend.limits.embedding_size)
        self._service = service
        self._given = given
        self._texts = texts
        self._requests = [
            GenerationRequest(
                rid,
                ids,
                POOLED,
                namespace_of(caller, given.cache_salt),
                timeout=given.timeout,
                queue_timeout=given.queue_timeout,
                priority=given.priority or 0,
                tenant=given.tenant,
                pooling=given.pooling or "mean",
            )
            for rid, ids in zip(rids, texts.ids, strict=True)
        ]

    async def run(
        self, scope: Scope, send: Send, body: Callable[[Sequence[TextNews]], bytes]
    ) -> None:
        """Have the vectors made and send them as `body` writes them."""
        service = self._service
        with service.limiter.admitted(scope, self._requests) as admission:
            outputs = await service.generation.outputs_of(
                self._requests, self._texts.field, admission.spend
            )
        for index, output in enumerate(outputs):
            with _placed(self._texts.place(index)):
                raise_if_failed(output.finish)
        numbers = len(outputs) * service.frontend.limits.embedding_size
        many = numbers > _MANY_NUMBERS
        content = await asyncio.to_thread(body, outputs) if many else body(outputs)
        await send_json(content, outputs[0], send)

    def openai_body(self, outputs: Sequence[TextNews]) -> bytes:
        """OpenAI's list of embeddings."""
        data = [
            {"object": "embedding", "index": index, "embedding": self._written(output)}
            for index, output in enumerate(outputs)
        ]
        prompt = sum(output.prompt_tokens for output in outputs)
        cached = sum(output.cached_tokens for output in outputs)
        usage = {
            "prompt_tokens": prompt,
            "total_tokens": prompt,
            "prompt_tokens_details": {"cached_tokens": cached},
        }
        model = self._service.model
        return msgspec.json.encode({"object": "list", "data": data, "model": model, "usage": usage})

    def native_body(self, outputs: Sequence[TextNews]) -> bytes:
        """An object with `embedding` and `meta_info`, or the list of them."""
        results = [
            {
                "embedding": self._written(output),
                "meta_info": ResultBuilder(ids, POOLED).delta(output)["meta_info"],
            }
            for ids, output in zip(self._texts.ids, outputs, strict=True)
        ]
        return msgspec.json.encode(results[0] if self._texts.single else results)

    def _written(self, output: TextNews) -> list[float] | str:
        given = self._given
        vector: Vector = embedding_of(output, given.dimensions, given.normalize is not False)
        if given.encoding_format == "base64":
            return base64.b64encode(vector.astype("<f4").tobytes()).decode()
        numbers: list[float] = vector.tolist()
        return numbers


async def _texts_of(frontend: Frontend, given: str | Sequence[Any], field: str) -> _Texts:
    """The texts of a request as tokens that can be served.

    Raises:
        ApiError: naming the place of the first that cannot.
    """
    if not given:
        raise ApiError(f"{field} is empty: give at least one text", param=field)
    single = isinstance(given, str) or set(map(type, given)) == {int}
    items = [given] if single else given
    if len(items) > MAX_INPUTS:
        raise ApiError(
            f"{field} has {len(items)} texts and may have {MAX_INPUTS}: send fewer at once",
            param=field,
        )
    kinds = {type(item) for item in items}
    if kinds not in ({str}, {list}):
        raise ApiError(
            f"{field} is of no form that is known: give a text, texts, token ids, or lists of "
            "token ids",
            param=field,
        )
    texts = _Texts([], field, single)
    size = text_size(given) if kinds == {str} else sum(map(len, items))
    ids = await apart(size, _all_ids, frontend, items, texts)
    return _Texts(ids, field, single)


def _all_ids(
    frontend: Frontend, items: Sequence[str | list[int]], texts: _Texts
) -> list[Sequence[int]]:
    found: list[Sequence[int]] = []
    limits = frontend.limits
    for index, item in enumerate(items):
        with _placed(texts.place(index)):
            if isinstance(item, str):
                check_fits(frontend.tokenizer, limits, item, texts.field)
            if not item:
                raise ValueError("the prompt is empty: give at least one token")
            ids = frontend.tokenizer.encode(item) if isinstance(item, str) else item
            checked_prompt(ids, limits.vocab_size)
            checked_new_tokens(
                len(ids), POOLED, limits.context_len, limits.capacity, limits.max_total_tokens
            )
        found.append(ids)
    return found


@contextmanager
def _placed(place: str) -> Iterator[None]:
    """Within it errors are about the text at a place, which they name."""
    try:
        with refusing(place):
            yield
    except ApiError as error:
        raise ApiError(
            f"{place}: {error}",
            error.status,
            param=place,
            code=error.code,
            retry_after=error.retry_after,
        ) from error


def _named(id: str, count: int) -> list[str]:
    return [id] if count == 1 else [sequence_id(id, index) for index in range(count)]


def _given_rids(rid: str | Sequence[str] | None, count: int) -> list[str]:
    if rid is None:
        return _named(uuid.uuid4().hex, count)
    return checked_rids(rid, count, "texts")
