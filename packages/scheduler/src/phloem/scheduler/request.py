"""One request inside the scheduler: its tokens, how far they are computed, and how it ended."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from phloem.mem_pool import Brought, CacheMiss, Lease, Retention
from phloem.scheduler.guide import Guide
from phloem.scheduler.ports import PoolingMode, PromptLogprobs, StopMatcher, TopLogprobs
from phloem.scheduler.sampling import SamplingParams


class Status(Enum):
    """Where a request is. It moves forward, or back to WAITING when it is retracted."""

    WAITING = "waiting"
    PREFILL = "prefill"
    """Holds a lease; part of its prompt has not been scheduled yet."""
    RUNNING = "running"
    """Its whole prompt is scheduled; it decodes."""
    FINISHED = "finished"
    """Has ended. It may still be in a step in flight, and holds its lease until that step is
    processed.
    """


@dataclass(frozen=True, slots=True)
class FinishReason:
    """Why a request ended."""

    type: str
    """"stop", "length", "abort" or "error"."""
    matched: int | str | None = None
    """The token id or the string that stopped it."""
    message: str | None = None
    status_code: int | None = None
    """What an HTTP front end should answer, for "abort" and "error"."""
    retry_after: float | None = None
    """Seconds after which trying again may help."""


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """The logprob of one output token and, where asked, the likeliest tokens at its position."""

    logprob: float
    top: TopLogprobs | None


@dataclass(frozen=True, slots=True)
class Timings:
    """When things happened to a request, in seconds of the scheduler's clock; None: not yet."""

    arrived: float
    admitted: float | None = None
    first_token: float | None = None
    finished: float | None = None


MOST_MARKS = 64
"""Of one request; what comes after these is not told."""


class Mark(NamedTuple):
    """Something that happened to a request on its way."""

    kind: str
    """"chunk": a step that computes a part of its prompt went out; "taken_back": its memory was
    taken, and it waits again.
    """
    at: float
    """Seconds of the scheduler's clock."""
    tokens: int
    """That the step computes; 0 where it was taken back."""


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """News of one request: the tokens of a step, and how it ended if it did."""

    rid: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...]
    """One entry a token where logprobs were asked for, else empty."""
    finish_reason: FinishReason | None
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    """Prompt tokens found in the prefix cache when the request was first admitted."""
    retractions: int
    timings: Timings
    prompt_logprobs: tuple[PromptLogprobs, ...] = ()
    """All of the prompt's, in order, with the first output after the prefill."""
    jump_forward_tokens: int = 0
    """Output tokens so far that a constraint left no choice about and no forward pass was made for.
    """
    cache_miss: CacheMiss | None = None
    """Why no more of the prompt was, where that was asked for; not with plain tokens."""
    brought: Brought | None = None
    """Of the cached tokens those that were not on the device; None: none."""
    embedding: npt.NDArray[np.float32] | None = None
    """`[hidden]`, with the end of a request whose prompt is pooled; see `PoolingMode`."""
    marks: tuple[Mark, ...] = ()
    """With the end of a request."""


class _Count:
    """An int of a request that stands in its `state`."""

    def __init__(self, index: int) -> None:
        self._index = index

    def __get__(self, request: Request, owner: type[Request]) -> int:
        request.enter()
        return int(request.state[self._index])

    def __set__(self, request: Request, value: int) -> None:
        request.enter()
        request.state[self._index] = value


def nothing_to_enter() -> None:
    """All that happened to a request is in its arrays, where it holds no memory."""


STATUSES = tuple(Status)
"""A status is kept as its index in here."""
STATE = ("status", "num_tokens", "pending", "scheduled", "in_flight")
"""What each entry of `Request.state` is."""


@dataclass(slots=True, eq=False)
class Request:
    """A request's state. The scheduler is the only writer.

    ```
    tokens:   [ prompt            | output ... ]          + `pending` sampled by steps in flight
              0      num_prompt          num_tokens
    computed: [ 0, scheduled )  has KV, or will have when the steps in flight are done
    ```

    Its counts and tokens stand in arrays of its own while it waits and after it has ended, and in
    those of the `RequestTable` while it holds memory, where a step changes those of all requests
    at once.
    """

    rid: str
    prompt_ids: npt.NDArray[np.int32]
    params: SamplingParams
    max_new_tokens: int
    seed: int
    arrived: float
    namespace: tuple[object, ...] = ()
    stop_matcher: StopMatcher | None = None
    priority: int = 0
    """The higher, the more urgent."""
    tenant: Hashable = ()
    """For whom it is, where tenants are served fairly."""
    guide: Guide | None = None
    """Of a constraint, if there is one."""
    retention: Retention | None = None
    """Of the beginning of its prompt in the cache."""

    pooling: PoolingMode | None = None
    """How its prompt is pooled to one vector, which is all that is made of it; None: it is not."""

    finish_reason: FinishReason | None = None
    lease: Lease | None = None
    prefill_end: int = 0
    """Tokens that the current prefill computes: the prompt, and the output too after a retraction.
    """
    publish: bool = True
    """Whether its KV may enter the prefix cache when it ends; not after a failed step."""
    came_at_pass: int = 0
    """The pass at which it came into the queue."""
    peeked: tuple[int, int] = (-1, 0)
    """How much of it was found cached, after the version of the cache at which it was looked up."""
    retractions: int = 0
    charged: int = 0
    """Tokens of it that its tenant was charged for, where tenants are served fairly."""
    preemptions: int = 0
    """How often it gave way to a more urgent one; no retraction, which is for want of memory."""
    cached_tokens: int | None = None
    brought: Brought | None = None
    """Of these, what was not on the device; None: nothing."""
    explain_cache: bool = False
    """Whether it is to be found out why no more was."""
    cache_miss: CacheMiss | None = None
    admitted: float | None = None
    first_token: float | None = None
    finished: float | None = None
    marks: list[Mark] = field(default_factory=list)
    """The first `MOST_MARKS`."""
    prompt_logprobs: list[PromptLogprobs] = field(default_factory=list)
    prompt_logprobs_next: int | None = None
    """The first prompt position whose logprob is still to be computed; None: none is."""
    embedding: npt.NDArray[np.float32] | None = None
    state: npt.NDArray[np.int32] = field(init=False, repr=False)
    """int32 [5], see `STATE`, as far as entered."""
    storage: npt.NDArray[np.int32] = field(init=False, repr=False)
    """Where its tokens stand, from the first on, likewise; longer than `num_tokens`, maybe."""
    enter: Callable[[], None] = field(default=nothing_to_enter, init=False, repr=False)
    """Brings both up to date."""

    num_tokens = _Count(1)
    pending = _Count(2)
    """Tokens that steps in flight will yield."""
    scheduled = _Count(3)
    in_flight = _Count(4)
    """Steps in flight that contain this request."""

    def __post_init__(self) -> None:
        self.state = np.array((0, len(self.prompt_ids), 0, 0, 0), np.int32)
        self.storage = self.prompt_ids
        if self.params.prompt_logprobs_from is not None:
            first = max(self.params.prompt_logprobs_from, 1)
            self.prompt_logprobs_next = first if first < self.num_prompt else None

    @property
    def status(self) -> Status:
        """Where it is."""
        return STATUSES[int(self.state[0])]

    @status.setter
    def status(self, status: Status) -> None:
        self.state[0] = STATUSES.index(status)

    @property
    def num_prompt(self) -> int:
        """Prompt tokens."""
        return len(self.prompt_ids)

    @property
    def num_output(self) -> int:
        """Output tokens that are known."""
        return self.num_tokens - self.num_prompt

    @property
    def tokens(self) -> npt.NDArray[np.int32]:
        """[num_tokens] prompt and known output; a view, valid until the next step."""
        return self.storage[: self.num_tokens]

    @property
    def output_ids(self) -> npt.NDArray[np.int32]:
        """[num_output] a view."""
        return self.storage[self.num_prompt : self.num_tokens]

    @property
    def length(self) -> int:
        """Tokens known or being sampled: where the next sampled token will stand."""
        return self.num_tokens + self.pending

    @property
    def new_tokens_left(self) -> int:
        """Output tokens that may still be scheduled."""
        return self.max_new_tokens - self.num_output - self.pending

    @property
    def keep_from(self) -> int | None:
        """First position to compute even if it is cached: its prompt logprobs are wanted, or the
        hidden states of all tokens, which are not cached.
        """
        if self.pooling == "mean":
            return 0
        return None if self.prompt_logprobs_next is None else self.prompt_logprobs_next - 1

    def append(self, token: int) -> None:
        """Add an output token."""
        n = self.num_tokens
        if n == len(self.storage):  # its own array, which is as long as its tokens
            self.storage = np.append(self.storage, np.int32(token))
        self.storage[n] = token
        self.num_tokens = n + 1

    def mark(self, kind: str, at: float, tokens: int = 0) -> None:
        """Keep a mark."""
        if len(self.marks) < MOST_MARKS:
            self.marks.append(Mark(kind, at, tokens))

    def add_prompt_logprobs(self, computed: PromptLogprobs) -> None:
        """Keep the prompt logprobs of a chunk."""
        assert self.prompt_logprobs_next is not None, f"{self.rid} asked for no prompt logprobs"
        self.prompt_logprobs.append(computed)
        following = self.prompt_logprobs_next + len(computed.logprobs)
        self.prompt_logprobs_next = following if following < self.num_prompt else None

    def report(
        self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprob] = ()
    ) -> RequestOutput:
        """The news that these tokens are; hands over the prompt logprobs once."""
        prompt_logprobs = tuple(self.prompt_logprobs)
        self.prompt_logprobs.clear()
        return RequestOutput(
            rid=self.rid,
            token_ids=tuple(token_ids),
            logprobs=tuple(logprobs),
            finish_reason=self.finish_reason,
            prompt_tokens=self.num_prompt,
            completion_tokens=self.num_output,
            cached_tokens=self.cached_tokens or 0,
            retractions=self.retractions,
            timings=Timings(self.arrived, self.admitted, self.first_token, self.finished),
            prompt_logprobs=prompt_logprobs,
            jump_forward_tokens=0 if self.guide is None else self.guide.jumped,
            brought=self.brought,
            cache_miss=self.cache_miss,
            embedding=self.embedding,
            marks=() if self.finish_reason is None else tuple(self.marks),
        )
