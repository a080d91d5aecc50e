"""What is noted of one HTTP request while it is answered, and who hears of it at the end.

`Surround` watches each request; the parts of its work note what they did with the watch of the task
that they run in, if there is one. Times are `perf_counter`'s, in seconds.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    # The detokenizer process, whose logs need this too, has neither.
    from starlette.types import Scope

    from phloem.scheduler import SamplingParams

logger = logging.getLogger(__name__)

_watch: ContextVar[RequestWatch | None] = ContextVar("phloem_watch", default=None)


class Stage(NamedTuple):
    """A part of the work."""

    name: str
    start: float
    end: float


@dataclass(slots=True)
class SequenceRecord:
    """One sequence that a request asked for."""

    rid: str
    params: SamplingParams | None
    started: float
    """When it was handed to the engine."""
    first: float | None = None
    """When its first token was here."""
    ended: float | None = None
    reason: str | None = None
    """Why it ended: a `FinishReason.type`, "refused", or "error" for an engine that has ended."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    retractions: int = 0
    timings: dict[str, float] = field(default_factory=dict)
    """The scheduler's, see `TokenNews`."""

    @property
    def stages(self) -> list[Stage]:
        """Where its time went, as far as is known.

        Between `started` and `ended` the scheduler accounts for its own time; what is left, which
        is the way between the processes and the making of text, counts as detokenizing.
        """
        lasting = self.timings
        if "queue" not in lasting:
            return []
        marks = [self.started + lasting.get(name, 0.0) for name in ("queue", "ttft", "total")]
        stages = [Stage("queue", self.started, marks[0])]
        if "ttft" in lasting:
            stages.append(Stage("prefill", marks[0], marks[1]))
        if "decode" in lasting:
            stages.append(Stage("decode", marks[1], marks[2]))
        if "total" in lasting and self.ended is not None:
            stages.append(Stage("detokenize", marks[2], max(self.ended, marks[2])))
        return stages


@dataclass(slots=True)
class RequestWatch:
    """One HTTP request."""

    scope: Scope
    started: float = field(default_factory=time.perf_counter)
    started_ns: int = field(default_factory=time.time_ns)
    """The same moment, in nanoseconds of the epoch."""
    stages: list[Stage] = field(default_factory=list)
    """What the request as a whole went through: tokenize, compile."""
    sequences: list[SequenceRecord] = field(default_factory=list)
    ended: float = 0.0
    endpoint: str = ""
    """The route's path, or "other"."""
    status: int = 0
    """As it was answered; 499 where the client had left."""
    texts: dict[str, str] = field(default_factory=dict)
    """The beginnings of what was asked and answered, where these are logged."""

    @property
    def request_id(self) -> str | None:
        """What the request is called, in its answer's headers too."""
        state: dict[str, Any] = self.scope.get("state") or {}
        return state.get("request_id")

    def ns(self, moment: float) -> int:
        """A moment in nanoseconds of the epoch."""
        return self.started_ns + int((moment - self.started) * 1e9)


class Watcher(Protocol):
    """Hears of each request that is over."""

    def ended(self, watch: RequestWatch) -> None:
        """It is over; to be quick, since other requests wait meanwhile."""
        ...


@dataclass(frozen=True)
class Observation:
    """How a server is observed, beside its metrics."""

    watchers: tuple[Watcher, ...] = ()
    keep_texts: bool = False
    """Whether watches have the beginnings of what was asked and answered."""
    startup_seconds: Mapping[str, float] = field(default_factory=dict)
    """How long each part of the start took."""


@contextmanager
def watching(scope: Scope, watchers: Sequence[Watcher]) -> Iterator[RequestWatch]:
    """Watch a request; whoever runs it sets `endpoint` and `status` before the end."""
    watch = RequestWatch(scope)
    reset = _watch.set(watch)
    try:
        yield watch
    finally:
        _watch.reset(reset)
        watch.ended = time.perf_counter()
        for each in watchers:
            _tell(each, watch)


def _tell(watcher: Watcher, watch: RequestWatch) -> None:
    try:
        watcher.ended(watch)
    except Exception:
        logger.exception("a request could not be recorded")


def current_watch() -> RequestWatch | None:
    """Of the request that the running task answers; None: it answers none."""
    return _watch.get()


@contextmanager
def stage(name: str) -> Iterator[None]:
    """What is done within is a stage of the request that the task answers, if it answers one."""
    watch = _watch.get()
    start = time.perf_counter()
    try:
        yield
    finally:
        if watch is not None:
            watch.stages.append(Stage(name, start, time.perf_counter()))
