"""The gRPC service: each call is a request to the HTTP API's app in this process.

So there is one way in: keys, limits, validation, metrics and traces are the endpoints'. Owns the
translation of calls, and their end: a cancelled one leaves, as a client of the endpoint would.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, NoReturn, Protocol, TypeVar

import grpc
import msgspec

from phloem.server.client.calls import HttpCalls
from phloem.server.client.errors import RequestFailed, failure_in_stream
from phloem.server.client.wire import Aborted, EmbeddingBody, Models, Result, embedded, generated
from phloem.server.grpc import phloem_pb2 as pb
from phloem.server.grpc.convert import body_of, embed_body_of, response_of
from phloem.server.grpc.methods import streaming, unary
from phloem.server.grpc.status import Metadata, code_of, metadata_of, passed_on

NAME: str = pb.DESCRIPTOR.services_by_name["Phloem"].full_name

Shape = TypeVar("Shape", bound=msgspec.Struct)


class Context(Protocol):
    """The part of `grpc.aio.ServicerContext` that is used here."""

    def invocation_metadata(self) -> Metadata | None:
        """What came with the call beside its message."""
        ...

    async def abort(
        self, code: grpc.StatusCode, details: str, trailing_metadata: Metadata = ()
    ) -> NoReturn:
        """End the call with an error."""
        ...


class PhloemService:
    """Answers the calls of `phloem.proto`."""

    def __init__(self, calls: HttpCalls) -> None:
        self._calls = calls

    def handler(self) -> grpc.GenericRpcHandler:
        """The methods, as a server takes them."""
        return grpc.method_handlers_generic_handler(
            NAME,
            {
                "Generate": unary(self.generate, pb.GenerateRequest, pb.GenerateResponse),
                "GenerateStream": streaming(
                    self.generate_stream, pb.GenerateRequest, pb.GenerateResponse
                ),
                "Embed": unary(self.embed, pb.EmbedRequest, pb.EmbedResponse),
                "Abort": unary(self.abort, pb.AbortRequest, pb.AbortResponse),
                "Info": unary(self.info, pb.InfoRequest, pb.InfoResponse),
            },
        )

    async def generate(self, request: pb.GenerateRequest, context: Context) -> pb.GenerateResponse:
        """A whole output."""
        result = await self._post(context, "/generate", body_of(request), Result)
        return response_of(generated(result))

    async def generate_stream(
        self, request: pb.GenerateRequest, context: Context
    ) -> AsyncGenerator[pb.GenerateResponse, None]:
        """An output as it comes."""
        body, headers = body_of(request) | {"stream": True}, _headers(context)
        try:
            async with aclosing(self._calls.events("/generate", body, Result, headers)) as results:
                async for result in results:
                    if result.error is not None:
                        raise failure_in_stream(result.error)
                    yield response_of(generated(result))
        except RequestFailed as error:
            await _refuse(context, error)

    async def embed(self, request: pb.EmbedRequest, context: Context) -> pb.EmbedResponse:
        """A vector for each input."""
        body = embed_body_of(request)
        answer = embedded(await self._post(context, "/v1/embeddings", body, EmbeddingBody))
        vectors = [pb.Vector(values=values) for values in answer.embeddings]
        return pb.EmbedResponse(vectors=vectors, prompt_tokens=answer.prompt_tokens)

    async def abort(self, request: pb.AbortRequest, context: Context) -> pb.AbortResponse:
        """End a request."""
        done = await self._post(context, "/abort_request", {"rid": request.rid}, Aborted)
        return pb.AbortResponse(aborted=done.aborted)

    async def info(self, _: pb.InfoRequest, context: Context) -> pb.InfoResponse:
        """What is served."""
        try:
            models = await self._calls.get("/v1/models", Models, _headers(context))
        except RequestFailed as error:
            await _refuse(context, error)
        model = models.data[0]
        return pb.InfoResponse(model=model.id, context_length=model.max_model_len)

    async def _post(self, context: Context, path: str, body: Any, shape: type[Shape]) -> Shape:
        try:
            return await self._calls.post(path, body, shape, _headers(context))
        except RequestFailed as error:
            await _refuse(context, error)


async def _refuse(context: Context, error: RequestFailed) -> NoReturn:
    await context.abort(code_of(error), str(error), metadata_of(error))


def _headers(context: Context) -> dict[str, str]:
    return passed_on(context.invocation_metadata())
