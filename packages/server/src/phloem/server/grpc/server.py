"""The gRPC server beside the HTTP server, in the same loop: its port, its health, its end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import httpx
from grpc_health.v1.health_pb2 import DESCRIPTOR, HealthCheckRequest, HealthCheckResponse
from starlette.types import ASGIApp

from phloem.server.client.calls import HttpCalls
from phloem.server.client.errors import RequestFailed
from phloem.server.client.retry import NO_RETRIES
from phloem.server.grpc.methods import streaming, unary
from phloem.server.grpc.service import NAME, Context, PhloemService
from phloem.server.in_process import InProcessTransport
from phloem.server.launch import StartupError

_HEALTH: str = DESCRIPTOR.services_by_name["Health"].full_name
_HANDSHAKE_MS = 10_000
_SILENCE_MS = 60_000
"""After which a client is asked whether it is there still, and for which it may not answer."""
_IDLE_MS = 300_000
"""After which a connection without calls is closed; clients make a new one by themselves."""
_SECONDS_TO_CLOSE = 0.5
"""For clients to read the rest of their answers, when nothing runs any more."""


class GrpcServer:
    """A server that takes calls."""

    def __init__(self, port: int, health: _Health) -> None:
        self.port = port
        self._health = health

    def drain(self) -> None:
        """Say that it takes no more requests; calls that run go on."""
        self._health.draining.set()


@asynccontextmanager
async def grpc_server(
    app: ASGIApp,
    host: str,
    port: int,
    max_message_bytes: int,
    credentials: grpc.ServerCredentials | None = None,
    max_connections: int | None = None,
) -> AsyncIterator[GrpcServer]:
    """Serve `app` over gRPC; at the end calls that run are cut off.

    Args:
        app: the HTTP API.
        host: the address to listen on.
        port: likewise; 0: any that is free.
        max_message_bytes: larger requests are refused.
        credentials: for TLS; None: without it.
        max_connections: more are closed when they come; None: any number may.

    Raises:
        StartupError: the address is not to be had.
    """
    options = [
        # Another server's port is not to be shared, which gRPC does by default.
        ("grpc.so_reuseport", 0),
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.server_handshake_timeout_ms", _HANDSHAKE_MS),
        # Clients that have gone without a word are noticed, and so are those that want nothing.
        ("grpc.keepalive_time_ms", _SILENCE_MS),
        ("grpc.keepalive_timeout_ms", _SILENCE_MS),
        ("grpc.max_connection_idle_ms", _IDLE_MS),
    ]
    if max_connections is not None:
        options.append(("grpc.max_allowed_incoming_connections", max_connections))
    server = grpc.aio.server(options=options)
    transport = InProcessTransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://grpc", timeout=None) as http:
        calls = HttpCalls(http, NO_RETRIES)
        health = _Health(calls)
        server.add_generic_rpc_handlers((PhloemService(calls).handler(), health.handler()))
        bound = _bind(server, host, port, credentials)
        await server.start()
        try:
            yield GrpcServer(bound, health)
        finally:
            health.ended.set()
            await server.stop(_SECONDS_TO_CLOSE)


def tls_credentials(certfile: str, keyfile: str | None, ca_certs: str | None) -> Any:
    """What gRPC needs for TLS, of the files that `phloem.server.tls.server_context` has checked.

    Args:
        certfile: the server's certificate, as PEM.
        keyfile: its key; None: it is in `certfile`.
        ca_certs: whose certificates clients must show; None: they are not asked for one.
    """
    pair = (Path(keyfile or certfile).read_bytes(), Path(certfile).read_bytes())
    roots = None if ca_certs is None else Path(ca_certs).read_bytes()
    return grpc.ssl_server_credentials([pair], roots, require_client_auth=roots is not None)


def _bind(
    server: grpc.aio.Server, host: str, port: int, credentials: grpc.ServerCredentials | None
) -> int:
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        if credentials is None:
            return int(server.add_insecure_port(address))
        return int(server.add_secure_port(address, credentials))
    except RuntimeError as error:
        raise StartupError(
            f"cannot listen for gRPC on {host} port {port}: choose another --host or --grpc-port"
        ) from error


class _Health:
    """The standard health service, of the whole server and of `phloem.v1.Phloem` alike.

    A check asks the same as `GET /ready`. A watch tells when the server begins to drain.
    """

    def __init__(self, calls: HttpCalls) -> None:
        self._calls = calls
        self.draining = asyncio.Event()
        self.ended = asyncio.Event()

    def handler(self) -> grpc.GenericRpcHandler:
        """The methods, as a server takes them."""
        wire = (HealthCheckRequest, HealthCheckResponse)
        return grpc.method_handlers_generic_handler(
            _HEALTH,
            {"Check": unary(self.check, *wire), "Watch": streaming(self.watch, *wire)},
        )

    async def check(self, request: HealthCheckRequest, context: Context) -> HealthCheckResponse:
        """Whether a service takes requests now."""
        if request.service not in ("", NAME):
            await context.abort(
                grpc.StatusCode.NOT_FOUND, f"there is no service {request.service!r} here"
            )
        return await self._status()

    async def watch(
        self, request: HealthCheckRequest, context: Context
    ) -> AsyncGenerator[HealthCheckResponse, None]:
        """The same, and again when the server drains."""
        if request.service in ("", NAME):
            yield await self._status()
            await self.draining.wait()
            yield HealthCheckResponse(status=HealthCheckResponse.NOT_SERVING)
        else:
            yield HealthCheckResponse(status=HealthCheckResponse.SERVICE_UNKNOWN)
        await self.ended.wait()

    async def _status(self) -> HealthCheckResponse:
        try:
            await self._calls.get("/ready", dict)
        except RequestFailed:
            return HealthCheckResponse(status=HealthCheckResponse.NOT_SERVING)
        return HealthCheckResponse(status=HealthCheckResponse.SERVING)
