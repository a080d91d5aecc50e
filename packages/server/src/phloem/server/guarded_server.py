"""The web server with its guards: keys, limits, TLS and the patience that connections get.

Owns what the options say of these, and Uvicorn's server with connections that keep to them.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from socket import socket
from time import monotonic
from typing import Any

import uvicorn

from phloem.server.file_limit import room_for_connections
from phloem.server.http.auth import Access
from phloem.server.http.connections import (
    Connection,
    ConnectionCounts,
    ConnectionLimits,
    Connections,
)
from phloem.server.http.limits import Limiter
from phloem.server.http_config import HttpArgs
from phloem.server.keys import KeyLimits, make_ring
from phloem.server.tls import server_context
from phloem.server.tls_listener import TlsListener

LOCAL = ("127.0.0.1", "::1", "localhost")
"""Addresses that only this machine can ask."""


@dataclass(frozen=True, slots=True)
class Guard:
    """What the options say of who may do what."""

    access: Access
    limiter: Limiter
    tls: ssl.SSLContext | None
    connections: ConnectionLimits
    counts: ConnectionCounts = field(default_factory=ConnectionCounts)


def guard_of(http: HttpArgs, warn: Callable[[str], object]) -> Guard:
    """The guards that options name; `warn` is told what is allowed but may not be meant.

    Raises:
        ValueError: a file that they name is not as it should be, or two keys are the same.
    """
    ring = make_ring(http.api_key, http.api_keys_file, http.admin_api_key)
    access = Access(ring, http.share_cache_between_keys, http.metrics_access)
    if access.trusting and http.host not in LOCAL:
        warn(
            f"everybody who can reach {http.host} may use this server, and pause or flush it: give "
            "--api-key and --admin-api-key, or listen on 127.0.0.1"
        )
    limits = KeyLimits(
        requests=http.rate_limit_requests,
        tokens=http.rate_limit_tokens,
        concurrent=http.max_concurrent_per_key,
    )
    tls = None
    if http.ssl_certfile is not None:
        tls = server_context(
            http.ssl_certfile, http.ssl_keyfile, http.ssl_ca_certs, http.ssl_client_certs
        )
    return Guard(access, Limiter(limits), tls, _connection_limits(http, warn))


def _connection_limits(http: HttpArgs, warn: Callable[[str], object]) -> ConnectionLimits:
    ports = 1 if http.grpc_port is None else 2
    room = room_for_connections(ports * http.max_connections) // ports
    if room < http.max_connections:
        warn(
            f"the system lets this process have {room} of {http.max_connections} max_connections: "
            "raise its limit on open files (ulimit -n)"
        )
    return ConnectionLimits(
        connections=room,
        header_timeout=http.header_timeout,
        body_timeout=http.body_timeout,
        write_timeout=http.write_timeout,
        body_bytes=http.max_request_bytes,
    )


class GuardedServer(uvicorn.Server):
    """Uvicorn's server, whose connections keep to limits, for an app without a lifespan.

    It has no signal handlers: its own would raise the signal again at the end.
    """

    def __init__(self, config: uvicorn.Config, guard: Guard) -> None:
        super().__init__(config)
        self.servers: list[Any] = []
        self.connections = Connections(guard.connections, monotonic, guard.counts)
        self._tls = guard.tls

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals as they are."""
        yield

    async def startup(self, sockets: list[socket] | None = None) -> None:
        """Take connections from `sockets`, which are there."""
        loop = asyncio.get_running_loop()

        def connection() -> Connection:
            return Connection(
                self.connections,
                config=self.config,
                server_state=self.server_state,
                app_state={},
            )

        for each in sockets or ():
            backlog = self.config.backlog
            if self._tls is None:
                self.servers.append(
                    await loop.create_server(connection, sock=each, backlog=backlog)
                )
            else:
                each.listen(backlog)
                self.servers.append(TlsListener(each, self._tls, self.connections, connection))
        self.started = True

    async def on_tick(self, counter: int) -> bool:
        """Called ten times a second: see who lets us wait for too long."""
        self.connections.sweep()
        return await super().on_tick(counter)
