"""A short way for the body of a stream, from a form to the socket.

An ASGI message passes through every layer of the app, each of them a coroutine, and takes more time
than writing to the socket does. No layer has to do with a body once an answer has begun; so a
connection offers, as an extension of ASGI in the scope, to take parts of it as they are. A layer
that does look at bodies withdraws the offer. Where there is none, ASGI is the way.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from typing import Any

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

_NAME = "phloem.body"

Writer = Callable[[bytes], bool]
"""Writes a part of a body, whose answer has begun and has no length; False: it did not, since the
client does not read or has left, and ASGI is the way, which waits.
"""


def offer(scope: MutableMapping[str, Any], cycle: RequestResponseCycle) -> None:
    """Let the app of a request write to its connection."""

    def write(part: bytes) -> bool:
        if cycle.flow.write_paused or cycle.disconnected or not cycle.chunked_encoding:
            return False
        cycle.transport.write(b"%x\r\n%b\r\n" % (len(part), part))
        return True

    scope.setdefault("extensions", {})[_NAME] = write


def withdraw(scope: MutableMapping[str, Any]) -> None:
    """Let all of a body pass through the layers of the app."""
    scope.get("extensions", {}).pop(_NAME, None)


def writer_of(scope: MutableMapping[str, Any]) -> Writer | None:
    """What is on offer."""
    writer: Writer | None = scope.get("extensions", {}).get(_NAME)
    return writer
