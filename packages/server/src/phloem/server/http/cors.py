"""Pages of other origins: which of them a browser lets read the answers.

Owns the headers of CORS and the answer to a preflight. Credentials are never allowed: keys come in
a header that a page sets itself, and there are no cookies.
"""

from __future__ import annotations

from collections.abc import Sequence

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

ANY = "*"
_METHODS = b"GET, POST, DELETE, HEAD, OPTIONS"
_SECONDS = b"600"
"""How long a browser may remember the answer to a preflight."""


class Cors:
    """Middleware that lets pages of `origins` read the answers."""

    def __init__(self, app: ASGIApp, origins: Sequence[str]) -> None:
        self._app = app
        self._any = ANY in origins
        self._origins = frozenset(origin.encode() for origin in origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer a preflight, as an ASGI app."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        origin = headers.get(b"origin")
        allowed = origin is not None and (self._any or origin in self._origins)
        told = scope["state"]["response_headers"]
        if not self._any:
            # Also where it is refused: caches in between must tell the origins apart.
            told.append((b"vary", b"origin"))
        if allowed:
            shown = b"*" if self._any else origin
            told.append((b"access-control-allow-origin", shown))
            told.append((b"access-control-expose-headers", b"*"))
        if scope["method"] == "OPTIONS" and b"access-control-request-method" in headers:
            if allowed:
                asked = headers.get(b"access-control-request-headers", b"")
                told.append((b"access-control-allow-methods", _METHODS))
                told.append((b"access-control-allow-headers", asked))
                told.append((b"access-control-max-age", _SECONDS))
            # Without these headers the browser refuses the page itself.
            await Response(status_code=204)(scope, receive, send)
            return
        await self._app(scope, receive, send)
