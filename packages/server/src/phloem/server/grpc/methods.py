"""Methods of a service as gRPC's server takes them, which read their messages themselves.

A message that cannot be read is an error of the client's, and is answered as one.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, Protocol

import grpc
from google.protobuf.message import DecodeError


class Aborting(Protocol):
    """The part of `grpc.aio.ServicerContext` that ends a call."""

    async def abort(self, code: grpc.StatusCode, details: str) -> Any:
        """End the call with an error; raises."""
        ...


def unary(
    method: Callable[[Any, Any], Awaitable[Any]], request: Any, answer: Any
) -> grpc.RpcMethodHandler:
    """A method that answers a message of type `request` with one of type `answer`."""

    async def call(raw: bytes, context: Any) -> Any:
        return await method(await _read(raw, request, context), context)

    return grpc.unary_unary_rpc_method_handler(call, None, answer.SerializeToString)


def streaming(
    method: Callable[[Any, Any], AsyncGenerator[Any, None]], request: Any, answer: Any
) -> grpc.RpcMethodHandler:
    """The same for one that answers with several."""

    async def call(raw: bytes, context: Any) -> AsyncIterator[Any]:
        async with aclosing(method(await _read(raw, request, context), context)) as answers:
            async for each in answers:
                yield each

    return grpc.unary_stream_rpc_method_handler(call, None, answer.SerializeToString)


async def _read(raw: bytes, shape: Any, context: Aborting) -> Any:
    try:
        return shape.FromString(raw)
    except DecodeError:
        await context.abort(
            grpc.StatusCode.INVALID_ARGUMENT,
            f"the {len(raw)} bytes are no {shape.DESCRIPTOR.full_name}: send one",
        )
