"""Connections and their patience: how many there may be, and how long clients may take.

Owns the limits that protect other clients from connections that say nothing, say it slowly, or do
not read what they asked for: each costs a file descriptor and memory, and Uvicorn waits for them
for ever. What a connection carries is not looked at here.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice, takewhile
from typing import Any, Literal, cast

import msgspec
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from phloem.server.direct_body import offer
from phloem.server.http.errors import ApiError
from phloem.server.http.request_id import HEADER, request_id_of

MAX_HEAD_BYTES = 64 << 10
"""Of a request's first line and headers; beyond, those of one read."""
MAX_PIPELINED = 64
"""Requests that a connection may send ahead of the answer that it waits for."""
_OVERHEAD = 2
"""What a body may take on the wire, in sizes of what it may have: chunks have lengths."""

Stage = Literal["head", "body", "answer"]
"""Whether a connection waits for a request's headers, its body, or for its answer."""

_SLOW = ApiError("the request did not arrive in time: send it faster, or less", 408, code="timeout")
_LARGE_HEAD = ApiError(
    f"the headers have more than {MAX_HEAD_BYTES} bytes, which is the limit here",
    431,
    code="headers_too_large",
)
_LARGE_BODY = ApiError("the body is larger than the limit here", 413, code="request_too_large")
_FULL = ApiError(
    "the server has as many connections as it may: try again later, or use fewer",
    503,
    code="overloaded",
    retry_after=1,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """Limits of one server's connections; times in seconds."""

    connections: int = 4096
    """At a time; for one more, another that waits for its client is closed, or it gets a 503."""
    header_timeout: float = 10.0
    """From the first byte, or without any, to the end of the headers."""
    body_timeout: float = 60.0
    """From there to the end of the body."""
    body_bytes: int = 16 << 20
    write_timeout: float = 60.0
    """For which a client may leave so much of an answer unread that the rest has to wait."""


class ConnectionCounts:
    """What is counted of a server's connections."""

    def __init__(self) -> None:
        self.open = 0
        self.closed: Counter[str] = Counter()
        """Refused, or closed before their requests were answered, by the reason: an error's code,
        `handshake`, `silent` or `unread`."""


class Connections:
    """All connections of a server; used in its event loop."""

    def __init__(
        self,
        limits: ConnectionLimits,
        clock: Callable[[], float],
        counts: ConnectionCounts | None = None,
    ) -> None:
        self.limits = limits
        self._counts = ConnectionCounts() if counts is None else counts
        self.closed = self._counts.closed
        self._clock = clock
        self._all: set[Connection] = set()
        self._handshakes: dict[Connection, float] = {}
        # In order of their deadlines, since all of one dict wait equally long.
        self._heads: dict[Connection, float] = {}
        self._bodies: dict[Connection, float] = {}
        self._unread: dict[Connection, float] = {}

    def __len__(self) -> int:
        return len(self._all) + len(self._handshakes)

    def enter(self, connection: Connection) -> bool:
        """Take a new one in; whether it may ask for anything but a refusal."""
        # With TLS, it has a place already.
        fits = self._handshakes.pop(connection, None) is not None or self._has_room()
        self._all.add(connection)
        self.wait(connection, "head")
        return fits

    def expect(self, connection: Connection) -> bool:
        """Count one that agrees on its encryption still, until it does or leaves; False: there is
        no room for it. The time that it may take is the event loop's affair.
        """
        fits = self._has_room()
        if fits:
            self._handshakes[connection] = self._clock()
        return fits

    def _has_room(self) -> bool:
        if len(self) < self.limits.connections or self._make_room():
            return True
        self.closed["overloaded"] += 1
        return False

    def _make_room(self) -> bool:
        """Close who has let us wait for longest; last, those whose requests are on their way."""
        waits = (
            (self._handshakes, 0.0),
            (self._heads, self.limits.header_timeout),
            (self._unread, self.limits.write_timeout),
        )
        firsts = [
            (deadline - patience, connection)
            for waiting, patience in waits
            for connection, deadline in islice(waiting.items(), 1)
        ]
        if firsts:
            _, longest = min(firsts, key=lambda each: each[0])
            longest.cut("overloaded")
            return True
        return any(connection.give_way() for connection in self._bodies)

    def leave(self, connection: Connection) -> None:
        """Forget one."""
        self._all.discard(connection)
        self._handshakes.pop(connection, None)
        self._heads.pop(connection, None)
        self._bodies.pop(connection, None)
        self._unread.pop(connection, None)

    def fill(self, connection: Connection) -> None:
        """What is sent on it piles up; from here on it has some time to be read."""
        self._heads.pop(connection, None)
        self._unread[connection] = self._clock() + self.limits.write_timeout

    def linger(self, connection: Connection) -> None:
        """One that has left, for who asks it, counts until what was sent on it is read."""
        self._all.add(connection)
        self.fill(connection)

    def drain(self, connection: Connection) -> None:
        """It does so no more."""
        self._unread.pop(connection, None)

    def wait(self, connection: Connection, stage: Stage) -> None:
        """Begin to wait for what `stage` says."""
        self._heads.pop(connection, None)
        self._bodies.pop(connection, None)
        if stage == "head":
            self._heads[connection] = self._clock() + self.limits.header_timeout
        elif stage == "body":
            self._bodies[connection] = self._clock() + self.limits.body_timeout

    def sweep(self) -> None:
        """End the waits that have been too long."""
        self._counts.open = len(self)
        for waiting in (self._heads, self._bodies):
            for connection in self._late(waiting):
                connection.expire()
        for connection in self._late(self._unread):
            connection.end_unread()

    def _late(self, waiting: dict[Connection, float]) -> list[Connection]:
        now = self._clock()
        return list(takewhile(lambda connection: waiting[connection] <= now, waiting))


class Connection(HttpToolsProtocol):
    """One connection, as Uvicorn serves it, within the limits of `guard`."""

    def __init__(self, guard: Connections, **options: Any) -> None:
        super().__init__(**options)
        self.handshake: asyncio.Task[None] | None = None
        """In which it agrees on its encryption."""
        self._guard = guard
        self._stage: Stage = "head"
        self._in_head = False
        """Between the first byte of a request and the end of its headers."""
        self._bytes = 0
        """Read of what the stage waits for."""
        self._ended = False
        """It is closed, once what was sent is read."""
        self._answering: RequestResponseCycle | None = None
        """With pipelining, another than the newest request's."""

    def connection_made(self, transport: Any) -> None:
        """Begin to wait for a request."""
        super().connection_made(transport)
        if not self._guard.enter(self):
            self.app = _refuse

    def connection_lost(self, exc: Exception | None) -> None:
        """Free what it took."""
        self._guard.leave(self)
        if self._answering is not None and not self._answering.response_complete:
            # Uvicorn tells the newest request alone.
            self._answering.disconnected = True
            self._answering.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take what a client sent."""
        before, was_in_head = self._stage, self._in_head
        super().data_received(data)
        if self._ended:
            return
        if self._in_head:
            if not was_in_head:
                self._bytes = 0
                if self._stage == "head":
                    self._guard.wait(self, "head")
            else:
                self._bytes += len(data)
                if self._bytes > MAX_HEAD_BYTES:
                    self._end(_LARGE_HEAD)
        elif before == self._stage == "body":
            self._bytes += len(data)
            if self._bytes > _OVERHEAD * self._guard.limits.body_bytes + MAX_HEAD_BYTES:
                self._end(_LARGE_BODY)

    def pause_writing(self) -> None:
        """The client is slower than what is sent to it."""
        super().pause_writing()
        self._guard.fill(self)

    def resume_writing(self) -> None:
        """It has caught up."""
        super().resume_writing()
        self._go_on()

    def on_message_begin(self) -> None:
        """The first byte of a request is there."""
        self._in_head = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """The headers are there."""
        self._in_head = False
        self._bytes = 0
        super().on_headers_complete()
        if len(self.pipeline) > MAX_PIPELINED:
            # The parser ends at it, and has it told by `send_400_response`.
            raise ValueError("too many requests are sent ahead")
        offer(cast(Scope, self.scope), self.cycle)
        self._enter("body")

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answering = cycle
        if cycle.scope["http_version"] == "1.0":
            app = _without_chunks(cycle, app)
        super()._start_asgi_task(cycle, app)

    def on_message_complete(self) -> None:
        """The body is there."""
        super().on_message_complete()
        self._enter("head" if self.cycle.response_complete else "answer")

    def on_response_complete(self) -> None:
        """An answer is sent; with pipelining, others may follow."""
        super().on_response_complete()
        if self._stage == "answer" and self.cycle.response_complete and not self._ended:
            self._enter("head")

    def send_400_response(self, msg: str) -> None:
        """Say that what came is no HTTP."""
        self._end(ApiError("the request is no valid HTTP", code="invalid_http"))

    def expire(self) -> None:
        """End a wait that was too long, unless it is the server that does not read."""
        if self._stage == "body" and self.flow.read_paused:
            self._enter("body")
        elif self._stage == "head" and not self._in_head:
            if self.transport.get_write_buffer_size():
                # It reads its last answer still.
                self._guard.fill(self)
            else:
                self.cut("silent")
        else:
            self._end(_SLOW)

    def end_unread(self) -> None:
        """Close it if what was sent is not read yet."""
        if self._ended or self.transport.get_write_buffer_size():
            self.cut("unread")
        else:
            self._go_on()

    def _go_on(self) -> None:
        """What was sent is read."""
        if self._ended:
            return
        self._guard.drain(self)
        if self._stage == "head":
            self._enter("head")

    def give_way(self) -> bool:
        """Close it, unless it is the server that does not read; whether it is closed."""
        if self.flow.read_paused:
            return False
        self._end(_FULL)
        if self.transport.get_write_buffer_size():
            # Else its place would not be free.
            self.cut()
        return True

    def cut(self, reason: str | None = None) -> None:
        """Close it without a word; a reason is counted."""
        if reason is not None:
            self._guard.closed[reason] += 1
        self._guard.leave(self)
        if self.transport is not None:
            self.transport.abort()
        elif self.handshake is not None:
            self.handshake.cancel()

    def _enter(self, stage: Stage) -> None:
        self._stage = stage
        self._guard.wait(self, stage)

    def _end(self, error: ApiError) -> None:
        """Close it, with an answer where none has begun."""
        self._guard.closed[error.code or "error"] += 1
        cycle = self.cycle
        begun = cycle is not None and cycle.response_started and not cycle.response_complete
        # With pipelining, the answer to an earlier request may be on its way.
        if not begun and not self.pipeline:
            self.transport.write(_raw(error))
        self.transport.close()
        self._ended = True
        self._guard.leave(self)
        if self.transport.get_write_buffer_size():
            # It is open until that is read.
            self._guard.linger(self)


def _without_chunks(cycle: RequestResponseCycle, app: ASGIApp) -> ASGIApp:
    """HTTP/1.0 has no chunks: answers of the app end with the connection, which Uvicorn closes."""
    cycle.chunked_encoding = False

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        async def part(message: Message) -> None:
            if message["type"] == "http.response.body":
                cycle.expected_content_length = len(message.get("body", b""))
            await send(message)

        await app(scope, receive, part)

    return answer


async def _refuse(scope: Scope, receive: Receive, send: Send) -> None:
    response = _closing(_FULL, scope["headers"])
    await response(scope, receive, send)


def _closing(error: ApiError, asked: list[tuple[bytes, bytes]]) -> Response:
    response = error.response()
    response.headers["Connection"] = "close"
    response.headers[HEADER.decode()] = request_id_of(asked)
    return response


def _raw(error: ApiError) -> bytes:
    """The same for who has sent no request, as bytes."""
    response = _closing(error, [])
    head = b"".join(b"%s: %s\r\n" % header for header in response.raw_headers)
    return b"%s%s\r\n%s" % (STATUS_LINE[error.status], head, msgspec.json.encode(error.body()))
