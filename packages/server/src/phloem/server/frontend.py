"""What the HTTP API asks of the engine behind it.

The contract of `phloem.server.tokenizer_manager.TokenizerManager`, which has the engine in other
processes; tests may put anything else in its place. Everything here is asyncio, in one loop.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from phloem.grammar.constraint import Whitespace
from phloem.mem_pool import Retention
from phloem.scheduler import PoolingMode, SamplingParams
from phloem.server.constraints import ConstraintRequest
from phloem.server.messages import CompiledConstraint, Limits, TextNews, Thinking
from phloem.server.tokenizer import Tokenizer


class Everybody(Enum):
    """The type of `EVERYBODY`."""

    EVERYBODY = "everybody"


EVERYBODY = Everybody.EVERYBODY
"""All tenants, which who has no name (None) is not."""
SHUTTING_DOWN = "the server is shutting down"


class ServiceUnavailable(RuntimeError):
    """The engine behind the API has ended or does not answer; a 503.

    Attributes:
        retry_after: seconds after which trying again may help; None: nobody knows.
    """

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One sequence to generate, as the API hands it over."""

    rid: str
    prompt_ids: Sequence[int]
    params: SamplingParams
    namespace: tuple[str | int | None, ...] = ()
    skip_special_tokens: bool = True
    timeout: float | None = None
    """Seconds after which it ends; None: as the server is configured."""
    queue_timeout: float | None = None
    """The same for the wait until it begins."""
    priority: int = 0
    tenant: str | None = None
    """For whom it is, where tenants are served fairly; None: its namespace tells."""
    constraint: CompiledConstraint | None = None
    retain_seconds: float | None = None
    """For how long the beginning of its prompt is evicted after all that is not retained, from each
    use on; None: it is not."""
    retain_tokens: int | None = None
    """How much of the prompt that is; None: all."""
    pooling: PoolingMode | None = None
    """How the prompt becomes one vector, which comes with the only news, instead of being
    continued."""
    keep_stop: bool = False
    """Whether its text keeps the stop string or token that ended it."""
    explain_cache: bool = False
    """Whether its news tell why no more of the prompt was cached."""
    thinking: Thinking | None = None
    """Reasoning with which its output begins, where that matters to a constraint."""
    shown_ids: tuple[int, ...] = ()
    """Special tokens that are not skipped, as marks of reasoning and of calls are not."""

    @property
    def retention(self) -> Retention | None:
        """The two as the scheduler takes them."""
        if self.retain_seconds is None:
            return None
        return Retention(self.retain_seconds, self.retain_tokens)


class ConstraintCompiler(Protocol):
    """Compiles constraints, apart from the engine's loop and from the API's."""

    whitespace: Whitespace
    """Of JSON outputs, where a request does not say."""

    async def compile(self, asked: ConstraintRequest) -> CompiledConstraint:
        """Compile a constraint; one that is known takes no time. Cancelling it ends its work.

        Raises:
            BadConstraint: it is malformed or unsupported, or not compiled within the limits.
        """
        ...

    async def check(self, asked: ConstraintRequest, backend: str | None) -> dict[str, Any]:
        """What a backend says of a constraint, by default the one that this server uses; `auto`
        asks one after the other until one supports it.

        Raises:
            ValueError: there is no such backend.
        """
        ...

    def stats(self) -> dict[str, int]:
        """Counts since the start: constraints compiled, failed, found in the cache; and more."""
        ...


class NewsStream(Protocol):
    """The news of one request, as they come, up to and with the one that has `finish`."""

    def __aiter__(self) -> AsyncIterator[TextNews]: ...

    async def __anext__(self) -> TextNews:
        """The next news.

        Raises:
            ServiceUnavailable: the engine has ended.
            StopAsyncIteration: the request has ended.
        """
        ...

    def ready(self) -> TextNews | None:
        """The next news, if they are here already."""
        ...

    def close(self, told: Callable[[TextNews], object] | None = None) -> None:
        """End the request unless it has ended; it is aborted and its memory freed. Idempotent.

        `told` hears of its last news then, when they come.
        """
        ...


class Frontend(Protocol):
    """An engine that takes requests."""

    tokenizer: Tokenizer
    limits: Limits
    grammar: ConstraintCompiler
    draining: bool
    """The server is ending: what runs goes on for a while, and nothing new is taken."""
    retry_after: float | None
    """Seconds after which a server that is draining will have ended."""

    def start(self, request: GenerationRequest) -> NewsStream:
        """Check a request and send it off.

        Raises:
            ValueError: it can never be served (`ContextLengthError` where it is too long); nothing
            was
                sent then.
            ServiceUnavailable: the engine has ended, or is `draining`.
        """
        ...

    def abort(self, rid: str | None, tenant: str | Everybody | None = EVERYBODY) -> int:
        """End the requests of an id, or all (None), of a tenant (None: of who has no name) or of
        everybody; how many there were.
        """
        ...

    async def ping(self, timeout: float) -> None:
        """Whether the engine goes on, or has nothing to do; answers at once.

        Raises:
            ServiceUnavailable: a part of it has been silent for more than `timeout` seconds, or has
                ended.
        """
        ...

    async def state(self) -> dict[str, Any]:
        """The scheduler's state: running, waiting, used, cached, free and total tokens and more."""
        ...

    async def tree(self, limit: int) -> dict[str, Any]:
        """The KV pool and the heavy part of the prefix tree; see `phloem.server.inspection`."""
        ...

    async def tree_node(self, id: str) -> list[int] | None:
        """The first tokens of a node of the tree; None if it is there no more.

        Raises:
            ValueError: that is no node's id.
        """
        ...

    async def flush_cache(self, timeout: float = 0.0) -> int:
        """Forget cached prefixes, having waited until none is in use; the tokens freed.

        Raises:
            ValueError: requests use them still after `timeout` seconds.
        """
        ...

    async def pause(self, mode: str) -> None:
        """Hold all requests still; see `phloem.scheduler.PauseMode` for the modes.

        Raises:
            ValueError: there is no such mode.
        """
        ...

    async def resume(self) -> None:
        """Let them go on."""
        ...

    async def set_weight_version(self, name: str) -> None:
        """Say that the model has other weights now; see `Scheduler.set_weight_version`."""
        ...
