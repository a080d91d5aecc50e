"""The beginnings of requests and answers, for logs that have texts; a layer of the app."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from phloem.server.direct_body import withdraw
from phloem.server.observability.watch import current_watch

MOST_BYTES = 2048
"""Kept of a request, and of its answer."""


class Excerpts:
    """Middleware that gives the watch of each request its texts."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, as an ASGI app."""
        watch = current_watch()
        if watch is None:
            await self._app(scope, receive, send)
            return
        withdraw(scope)
        asked, answered = bytearray(), bytearray()

        async def receiving() -> Message:
            message = await receive()
            _keep(asked, message.get("body", b""))
            return message

        async def sending(message: Message) -> None:
            _keep(answered, message.get("body", b""))
            await send(message)

        try:
            await self._app(scope, receiving, sending)
        finally:
            for name, text in (("request", asked), ("response", answered)):
                watch.texts[name] = text.decode(errors="replace")


def _keep(text: bytearray, more: bytes) -> None:
    if len(text) < MOST_BYTES:
        text += more[: MOST_BYTES - len(text)]
