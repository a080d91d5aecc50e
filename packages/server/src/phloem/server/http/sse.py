"""Server-sent events over plain ASGI, one write for whatever is ready.

Owns the framing and the end of a stream, good or bad. Starlette's streaming response would add a
task group and several layers to each chunk.
"""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.types import Send

from phloem.server.http.errors import ApiError
from phloem.server.http.truth import Headers

_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    # Proxies that gather a response before they pass it on would undo the streaming.
    (b"x-accel-buffering", b"no"),
]
DONE = b"data: [DONE]\n\n"
"""OpenAI's mark of a complete stream."""

_LINE_ENDS = {
    character.encode(): f"\\u{ord(character):04x}".encode()
    for character in ("\x85", "\u2028", "\u2029")
}
"""What JSON leaves as it is, but some clients take for ends of lines, and its escapes."""


def json_line(content: Any) -> bytes:
    """`content` as JSON without anything in it that could be taken for a line's end."""
    data = msgspec.json.encode(content)
    if not data.isascii():
        for character, escaped in _LINE_ENDS.items():
            data = data.replace(character, escaped)
    return data


def event(content: Any) -> bytes:
    """One event with `content` as JSON."""
    return b"data: " + json_line(content) + b"\n\n"


def named_event(name: str, content: Any) -> bytes:
    """As `event`, with the name that some clients tell events apart by."""
    return b"event: " + name.encode() + b"\n" + event(content)


def failure_event(error: ApiError) -> bytes:
    """What went wrong; nothing follows, so that nobody takes the answer for complete."""
    return event(error.body())


class EventStream:
    """One response of events; the status goes out with the first of them."""

    __slots__ = ("_headers", "_send", "started")

    def __init__(self, send: Send) -> None:
        self._send = send
        self._headers = list(_HEADERS)
        self.started = False

    def add_headers(self, headers: Headers) -> None:
        """Headers beside those that every stream has; too late once it has started."""
        self._headers += headers

    async def write(self, events: bytes) -> None:
        """Send framed events."""
        if not self.started:
            self.started = True
            start = {"type": "http.response.start", "status": 200, "headers": self._headers}
            await self._send(start)
        await self._send({"type": "http.response.body", "body": events, "more_body": True})

    async def end(self, events: bytes) -> None:
        """Send the last events."""
        await self.write(events)
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})
