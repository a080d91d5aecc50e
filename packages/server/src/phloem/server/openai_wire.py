"""The OpenAI API as a client meets it: base URLs, streamed events, errors.

Owns the reading of what a server sends, Phloem's or any other, from bytes that may be cut anywhere.
It does no input or output of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Generic, TypeVar, overload
from urllib.parse import urlsplit

import msgspec

EVENT_STREAM = "text/event-stream"

T = TypeVar("T", bound=msgspec.Struct)

_LINE_END = re.compile(rb"\r\n|\n|\r")
_DONE = b"[DONE]"
_LONGEST_QUOTE = 300
"""Characters of an unexpected body that an error message shows."""


class PromptTokensDetails(msgspec.Struct):
    """What became of the prompt's tokens."""

    cached_tokens: int | None = None


class Usage(msgspec.Struct):
    """Token counts, as far as the server tells."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: PromptTokensDetails | None = None

    @property
    def cached_tokens(self) -> int | None:
        """Prompt tokens that the server found in its cache; None: it does not say."""
        details = self.prompt_tokens_details
        return None if details is None else details.cached_tokens


class CallFunction(msgspec.Struct):
    """What is new of the function that a call names."""

    name: str | None = None
    arguments: str | None = None


class ToolCall(msgspec.Struct):
    """What is new of a call; the first of each has its id and its function's name."""

    index: int | None = None
    """Which of a stream's calls it belongs to."""
    id: str | None = None
    function: CallFunction | None = None


class Delta(msgspec.Struct):
    """What is new of a chat message."""

    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] | None = None


class Choice(msgspec.Struct):
    """What is new of one output: `text` of a completion, `delta` of a chat."""

    text: str | None = None
    delta: Delta | None = None
    finish_reason: str | None = None

    @property
    def piece(self) -> str:
        """The new text, of either kind."""
        return (self.text if self.delta is None else self.delta.content) or ""


class Event(msgspec.Struct):
    """One event of a streamed answer; fields that are not here are passed over."""

    id: str | None = None
    choices: list[Choice] | None = None
    usage: Usage | None = None
    error: Any = None


class BadStream(ValueError):
    """A server sent what is no event of the OpenAI API."""


class EventReader(Generic[T]):
    """Turns the bytes of a `text/event-stream` into events, however they are cut.

    Follows the HTML standard's rules for server-sent events, of which only `data` matters here:
    each is an `Event` of the OpenAI API, or of the `shape` that is given.
    """

    @overload
    def __init__(self: EventReader[Event]) -> None: ...
    @overload
    def __init__(self, shape: type[T]) -> None: ...
    def __init__(self, shape: Any = Event) -> None:
        self._decoder: msgspec.json.Decoder[T] = msgspec.json.Decoder(shape)
        self._rest = b""
        self._data: list[bytes] = []
        self.done = False
        """Whether `[DONE]` has come; what follows it is passed over."""

    def feed(self, data: bytes) -> Iterator[T]:
        """The events that these bytes complete.

        Raises:
            BadStream: an event holds something else.
        """
        lines = _LINE_END.split(self._rest + data)
        self._rest = lines.pop()
        if data.endswith(b"\r") and not self._rest:
            # A line end may be cut in two: decide when the next byte is there.
            self._rest = lines.pop() + b"\r"
        for line in lines:
            event = self._line(line)
            if event is not None:
                yield event

    def _line(self, line: bytes) -> T | None:
        if line.startswith(b"data:"):
            self._data.append(line[6:] if line[5:6] == b" " else line[5:])
        elif not line and self._data:
            data, self._data = b"\n".join(self._data), []
            if data == _DONE:
                self.done = True
            return None if self.done else self._decode(data)
        return None

    def _decode(self, data: bytes) -> T:
        try:
            return self._decoder.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BadStream(f"the server sent {quote(data)}, no event ({error})") from error


def api_base(url: str) -> str:
    """The URL that paths like `/completions` are appended to; a bare host gets `/v1`.

    Raises:
        ValueError: when `url` is no HTTP address.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise ValueError(f"{url!r} is no address of a server: give one like http://127.0.0.1:30000")
    return url.rstrip("/") if parts.path.strip("/") else f"{parts.scheme}://{parts.netloc}/v1"


def error_sentence(status: int, body: bytes) -> str:
    """What a refusal says, from a body of OpenAI's form or any other."""
    try:
        message = error_message(msgspec.json.decode(body, type=Event).error)
    except (msgspec.DecodeError, UnicodeDecodeError):
        message = ""
    return f"{message or quote(body) or 'the server gives no reason'} (HTTP status {status})"


def bearer(api_key: str | None) -> dict[str, str]:
    """The headers that a key is sent in; None or empty: none.

    Raises:
        ValueError: no header can have it.
    """
    if not api_key:
        return {}
    if not (api_key.isascii() and api_key.isprintable()):
        raise ValueError(
            "the API key has characters other than printable ASCII, which no header can have: "
            "give the key as the server has it"
        )
    return {"Authorization": f"Bearer {api_key}"}


def error_message(error: Any) -> str:
    """The sentence in an `error` field: an object with a `message`, or a string."""
    if isinstance(error, dict):
        return str(error.get("message") or error)
    return "" if error is None else str(error)


def quote(data: bytes) -> str:
    """The beginning of what a server sent, as text for an error message."""
    return data[:_LONGEST_QUOTE].decode(errors="replace").strip()
