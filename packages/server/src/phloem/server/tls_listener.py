"""Connections with TLS from their first moment on: taken, counted, and brought to an agreement.

The event loop's own server tells of a connection only when it has agreed on its encryption, so that
any number could stay before that. Here each counts among the server's connections at once. What
comes after is the connection's own affair.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from socket import socket

from phloem.server.http.connections import Connection, Connections
from phloem.server.tls import HANDSHAKE_SECONDS

log = logging.getLogger(__name__)

_PAUSE = 0.1
"""Seconds after which a system that has no room for a connection is asked again."""


class TlsListener:
    """Takes connections from a socket that listens, until it is closed; used in one event loop."""

    def __init__(
        self,
        listener: socket,
        tls: ssl.SSLContext,
        connections: Connections,
        new: Callable[[], Connection],
    ) -> None:
        listener.setblocking(False)
        self.sockets = (listener,)
        self._tls = tls
        self._connections = connections
        self._new = new
        self._handshakes: set[asyncio.Task[None]] = set()
        self._task = asyncio.ensure_future(self._accept(listener))

    def close(self) -> None:
        """Take no more; who has not agreed yet is let go."""
        for task in (self._task, *self._handshakes):
            task.cancel()

    async def wait_closed(self) -> None:
        """Wait until that is done."""
        await asyncio.gather(self._task, *self._handshakes, return_exceptions=True)

    async def _accept(self, listener: socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, _ = await loop.sock_accept(listener)
            except OSError as error:
                # Out of file descriptors, or the client has left already.
                log.debug("no connection could be taken: %s", error)
                await asyncio.sleep(_PAUSE)
                continue
            connection = self._new()
            if not self._connections.expect(connection):
                accepted.close()
                continue
            task = loop.create_task(self._agree(accepted, connection))
            connection.handshake = task
            self._handshakes.add(task)
            task.add_done_callback(self._handshakes.discard)

    async def _agree(self, accepted: socket, connection: Connection) -> None:
        """Agree with a client on the encryption, and leave it to its connection then."""
        accepted.setblocking(False)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection,
                accepted,
                ssl=self._tls,
                ssl_handshake_timeout=HANDSHAKE_SECONDS,
            )
        except (OSError, asyncio.TimeoutError) as error:
            log.debug("a client did not agree on TLS: %s", error)
            self._connections.closed["handshake"] += 1
            self._connections.leave(connection)
        finally:
            connection.handshake = None
