"""An ASGI app as the server of an `httpx.AsyncClient`, without a network between them.

Owns what a web server does for one request: the app gets its body, its answer comes back as it is
made, and a client that closes the answer has left. So whatever reaches the app in this way (a
batch, a gRPC call) is checked, counted and limited as if it had come over HTTP.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import httpx
from starlette.types import ASGIApp, Message

log = logging.getLogger(__name__)

_MOST_WAITING = 64
"""Parts of an answer that wait for a client that reads slowly, before the app waits too."""
_CLIENT = ("in-process", 0)


class InProcessTransport(httpx.AsyncBaseTransport):
    """Hands requests to `app`, in the loop that sends them.

    Raises, from what it answers:
        httpx.ReadError: the app ended in the middle of its answer.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Start the app; returns when it has begun to answer."""
        call = _Call(self._app, request, await request.aread())
        try:
            status, headers = await call.begin()
        except BaseException:
            await call.aclose()
            raise
        return httpx.Response(status, headers=headers, stream=call)


class _Call(httpx.AsyncByteStream):
    """One run of the app, and the body of its answer."""

    def __init__(self, app: ASGIApp, request: httpx.Request, body: bytes) -> None:
        self._unread: bytes | None = body
        self._messages: asyncio.Queue[Message | None] = asyncio.Queue(_MOST_WAITING)
        self._answered = asyncio.Event()
        self._task = asyncio.ensure_future(self._run(app, _scope(request)))

    async def begin(self) -> tuple[int, list[tuple[bytes, bytes]]]:
        """The status and the headers."""
        start = await self._messages.get()
        if start is None:
            raise _cut_off()
        return start["status"], start["headers"]

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            message = await self._messages.get()
            if message is None:
                raise _cut_off()
            if message.get("body"):
                yield message["body"]
            if not message.get("more_body", False):
                return

    async def aclose(self) -> None:
        """The client has left; returns when the app has ended."""
        if not self._answered.is_set():
            self._task.cancel()
        await asyncio.wait([self._task])

    async def _run(self, app: ASGIApp, scope: dict[str, Any]) -> None:
        try:
            await app(scope, self._receive, self._send)
        except Exception as error:
            # As any web server does: the client sees an answer that is cut off.
            log.error("a request failed", exc_info=error)
        if not self._answered.is_set():
            await self._messages.put(None)

    async def _receive(self) -> Message:
        if self._unread is not None:
            body, self._unread = self._unread, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._answered.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        await self._messages.put(message)
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            self._answered.set()


def _cut_off() -> httpx.ReadError:
    return httpx.ReadError("the answer was cut off")


def _scope(request: httpx.Request) -> dict[str, Any]:
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": request.url.scheme,
        "path": request.url.path,
        "raw_path": request.url.raw_path.partition(b"?")[0],
        "root_path": "",
        "query_string": request.url.query,
        "headers": [(name.lower(), value) for name, value in request.headers.raw],
        "server": (request.url.host, request.url.port),
        "client": _CLIENT,
        "state": {},
    }
