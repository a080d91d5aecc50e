"""Server-sent events over plain ASGI, one write for whatever is ready.

Owns the framing and the end of a stream, good or bad. Starlette's streaming response would add a
task group and several layers to each chunk.
"""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.types import Scope, Send

from phloem.server.direct_body import writer_of
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
    """One response of events; the status goes out with the first of them.

    What is held goes out in one write. Several tasks may use it: each holds events and flushes.
    """

    __slots__ = ("_headers", "_held", "_send", "_write", "started")

    def __init__(self, scope: Scope, send: Send) -> None:
        self._send = send
        self._write = writer_of(scope)
        self._headers = list(_HEADERS)
        self._held: list[bytes] = []
        self.started = False

    def add_headers(self, headers: Headers) -> None:
        """Headers beside those that every stream has; too late once it has started."""
        self._headers += headers

    def hold(self, events: bytes) -> None:
        """Take framed events, for the next flush."""
        if events:
            self._held.append(events)

    def flush_now(self) -> bool:
        """Send what is held if that takes no waiting; False: await `flush`."""
        held = self._held
        if not held:
            return True
        if not self.started or self._write is None or not self._write(b"".join(held)):
            return False
        held.clear()
        return True

    async def flush(self) -> None:
        """Send what is held, which `flush_now` did not, and wait while the client does not read."""
        events = b"".join(self._held)
        self._held.clear()
        if not self.started:
            self.started = True
            start = {"type": "http.response.start", "status": 200, "headers": self._headers}
            await self._send(start)
        await self._send({"type": "http.response.body", "body": events, "more_body": True})

    async def end(self, events: bytes) -> None:
        """Send what is held and the last events."""
        self.hold(events)
        if not self.flush_now():
            await self.flush()
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})
