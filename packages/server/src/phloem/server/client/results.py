"""What the clients give: plain data, the same over HTTP and gRPC."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from phloem.server.closing import AsyncClosing

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Finish:
    """Why an output ended."""

    type: str
    """"stop", "length", "abort" or "error"."""
    matched: str | int | None = None
    """The stop string or the token that ended it."""
    message: str | None = None
    status: int | None = None
    """As HTTP has it, of what ended before its time."""


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """The logprob of a token, and the likeliest tokens in its place as `(token_id, logprob)`."""

    token_id: int
    logprob: float | None
    """None: nothing came before it."""
    top: Sequence[tuple[int, float]] = ()


@dataclass(frozen=True, slots=True)
class Generated:
    """An output, or what is new of one in a stream; the counts are of all of it so far."""

    request_id: str
    """Names it, for `abort`."""
    text: str
    token_ids: Sequence[int]
    finish: Finish | None
    """None: more follows."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    retractions: int = 0
    timings: Mapping[str, float] = field(default_factory=dict)
    """With the last news; the names and units are those of `/generate`."""
    logprobs: Sequence[TokenLogprob] = ()
    prompt_logprobs: Sequence[TokenLogprob] = ()


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """A call of a function, or what is new of one in a stream."""

    index: int
    id: str | None
    name: str | None
    arguments: str


@dataclass(frozen=True, slots=True)
class ChatAnswer:
    """An answer in a chat, or what is new of one in a stream."""

    request_id: str
    """Names it, for `abort`."""
    text: str
    reasoning: str = ""
    tool_calls: Sequence[FunctionCall] = ()
    finish_reason: str | None = None
    """None: more follows."""
    prompt_tokens: int | None = None
    """None, as of the other counts: the server has not said."""
    completion_tokens: int | None = None
    cached_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Embedded:
    """A vector for each input."""

    embeddings: Sequence[Sequence[float]]
    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class Health:
    """Whether a server takes requests."""

    ready: bool
    message: str = ""
    """Why it does not."""


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """What a server serves."""

    model: str
    context_length: int
    """Tokens of prompt and output together."""


class Stream(AsyncClosing, Generic[T]):
    """What is new of an answer, as it comes; an async iterator.

    Closing it, as leaving `async with` does, ends the request on the server.
    """

    def __init__(self, parts: AsyncGenerator[T, None]) -> None:
        self._parts = parts

    def __aiter__(self) -> Stream[T]:
        return self

    async def __anext__(self) -> T:
        """The next part.

        Raises:
            RequestFailed: it was refused, or failed on the way.
            StopAsyncIteration: it is complete.
        """
        return await self._parts.__anext__()

    async def aclose(self) -> None:
        """End the request, unless it has ended."""
        await self._parts.aclose()
