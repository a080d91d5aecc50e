"""Typed asyncio clients of a Phloem server, over HTTP and over gRPC, with the same results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from phloem.server.client.errors import RequestFailed
from phloem.server.client.over_http import AsyncClient
from phloem.server.client.results import (
    ChatAnswer,
    Embedded,
    Finish,
    FunctionCall,
    Generated,
    Health,
    ServerInfo,
    Stream,
    TokenLogprob,
)
from phloem.server.client.retry import NO_RETRIES, Retries

if TYPE_CHECKING:
    from phloem.server.client.over_grpc import AsyncGrpcClient

__all__ = [
    "NO_RETRIES",
    "AsyncClient",
    "AsyncGrpcClient",
    "ChatAnswer",
    "Embedded",
    "Finish",
    "FunctionCall",
    "Generated",
    "Health",
    "RequestFailed",
    "Retries",
    "ServerInfo",
    "Stream",
    "TokenLogprob",
]


def __getattr__(name: str) -> Any:
    # gRPC is an extra, which the client over HTTP does without.
    if name == "AsyncGrpcClient":
        from phloem.server.client.over_grpc import AsyncGrpcClient

        return AsyncGrpcClient
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
