"""What the server's processes say to each other: msgspec structs, as MessagePack over ZMQ.

Structs are encoded as arrays, since a step sends one entry for every running request, and the
garbage collector does not look at them, since nothing in them leads back. This module holds no
behaviour and no numpy, so that the API process and the detokenizer stay light.

```
API process ──Load, Generate, Forget, Abort, Control, Beat──▶ scheduler ──TokenBatch, Beat──┐
            ◀─────────────Ready, Failed, Reply, Heard─────────────┘                         ▼
            ◀─────────────────────────TextBatch, Heard──────────────────────────── detokenizer
```
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import msgspec


class _Message(msgspec.Struct, array_like=True, tag=True, gc=False):
    """Base of what is sent: one of several kinds, told apart by its name."""


class _Part(msgspec.Struct, array_like=True, gc=False):
    """Base of what messages are made of."""


# API process to scheduler.


class Load(_Message):
    """A constraint that requests will name, compiled for the vocabulary that both processes made
    alike; sent once, however many name it."""

    key: str
    """Equal for equal constraints; see `phloem.grammar.Constraint`."""
    backend: str
    """The one that compiled it, and reads `data`."""
    data: bytes
    """What `phloem.grammar.Grammar.serialize` gave."""


class Forget(_Message):
    """No request that names these constraints is left."""

    keys: list[str]


class Thinking(_Part):
    """Reasoning that comes before what a constraint binds."""

    end: list[int]
    """The tokens that end it."""
    budget: int | None = None
    """Tokens after which only its end may come; None: any number."""
    begin: int | None = None
    """The token that opens it, if it is the first one of the output; None: it has begun."""


class ConstraintUse(_Part):
    """How a request follows a constraint that is loaded."""

    key: str
    jump_forward: bool | None = None
    """Whether text that is forced is taken without the model; None: as the engine is configured."""
    steering: bool | None = None
    """Whether the text is brought to its end within its tokens, likewise."""
    thinking: Thinking | None = None
    """What comes before; None: the constraint binds from the beginning."""


class CompiledConstraint(NamedTuple):
    """What a text must keep to, as one process has it; between processes it goes in two parts."""

    load: Load | None
    """None: only the reasoning is bound; its `use` has no key then."""
    use: ConstraintUse

    @classmethod
    def of(
        cls,
        made: Load,
        jump_forward: bool | None = None,
        steering: bool | None = None,
    ) -> CompiledConstraint:
        """A compiled constraint, followed in a way."""
        return cls(made, ConstraintUse(made.key, jump_forward, steering))

    def behind(self, thinking: Thinking) -> CompiledConstraint:
        """The same behind some reasoning."""
        return self._replace(use=msgspec.structs.replace(self.use, thinking=thinking))


class Generate(_Message):
    """Queue a request. The API process has checked it against `Limits`."""

    rid: str
    prompt_ids: list[int]
    sampling_params: dict[str, Any]
    """Fields of `phloem.scheduler.SamplingParams`."""
    namespace: list[str | int | None] = []
    skip_special_tokens: bool = True
    timeout: float | None = None
    """Seconds; None: as the scheduler is configured."""
    queue_timeout: float | None = None
    priority: int = 0
    tenant: str | None = None
    constraint: ConstraintUse | None = None
    retain_seconds: float | None = None
    retain_tokens: int | None = None
    pooling: Literal["mean", "last"] | None = None
    """How the prompt becomes one vector, instead of being continued; see
    `phloem.scheduler.PoolingMode`."""
    keep_stop: bool = False
    """Whether the text keeps what ended it."""
    explain_cache: bool = False
    """Whether its news tell why no more of the prompt was cached."""
    shown_ids: list[int] = []
    """Special tokens that are text all the same, as marks of reasoning and of calls are."""


class Abort(_Message):
    """End requests; ids that are not there do not matter."""

    rids: list[str]


class Control(_Message):
    """Ask the scheduler for something between two steps; it answers with a `Reply`."""

    id: int
    action: str
    """One of those that `phloem.server.control` knows."""
    options: dict[str, Any] = {}


class Beat(_Message):
    """Passed on, in order with all else, by each process that is awake, which says so by `Heard`;
    see `phloem.server.heartbeat`."""

    number: int


ToScheduler = Load | Forget | Generate | Abort | Control | Beat


# Scheduler to API process.


class Limits(_Part):
    """What a request must keep to; asked before anything is sent."""

    context_len: int
    max_total_tokens: int
    """Longest prompt and output together that can be served."""
    vocab_size: int
    capacity: int
    """Tokens that the KV cache holds."""
    priorities: bool = False
    """Whether requests may have a priority."""
    embedding_size: int = 0
    """Of the vectors that prompts are pooled to."""


class EngineFacts(_Part):
    """What an engine came to be, where options left it to the model and the machine."""

    device: str
    kernels: str
    """Which compute; `scripted` where there is no model."""
    quantization: str
    """Of the weights."""
    dtype: str
    """Of the activations."""
    kv_dtype: str
    kv_bytes: int
    """Reserved for the KV cache."""
    chunk: int | None
    """Tokens of a prompt computed in one step; None: all."""
    overlap: bool
    """Whether a step is scheduled while another one runs."""


class Ready(_Message):
    """The scheduler has loaded its model and takes requests."""

    limits: Limits
    startup_seconds: dict[str, float]
    """How long each part of the start took, in order."""
    facts: EngineFacts
    stop_ids: list[int] = []
    """Tokens that end a text by themselves; constraints are compiled with them."""


class Failed(_Message):
    """The scheduler could not start; `message` is a sentence for the user."""

    message: str
    bad_options: bool
    """Whether other options would help."""


class Reply(_Message):
    """The answer to a `Control`: what was asked for, or why not."""

    id: int
    value: dict[str, Any]
    error: str | None = None


class Heard(_Message):
    """A process has passed a beat on; from the detokenizer too."""

    process: str
    number: int


FromScheduler = Ready | Failed | Reply | Heard


# Scheduler to detokenizer to API process.


class Finish(_Part):
    """Why a request ended; as `phloem.scheduler.FinishReason`, or type "refused": it never began,
    because too many wait.
    """

    type: str
    matched: int | str | None = None
    message: str | None = None
    status_code: int | None = None
    retry_after: float | None = None
    """Seconds after which trying again may help."""


class TextOptions(_Part):
    """How one request's tokens become text."""

    stop: list[str]
    skip_special_tokens: bool
    keep_stop: bool = False
    shown_ids: list[int] = []
    """Special tokens that are not skipped."""


class CacheMiss(_Part):
    """Where the cached part of a prompt ends, and why; see `phloem.mem_pool.CacheMiss`."""

    reason: str
    at: int


class Logprobs(_Part):
    """Logprobs of some tokens in order; `top` has `(token_id, logprob)` pairs for each, or is
    empty.
    """

    chosen: list[float | None]
    top: list[list[tuple[int, float]]]


class TokenNews(_Part):
    """News of one request: the tokens of a step, and how it ended if it did."""

    rid: str
    token_ids: list[int]
    finish: Finish | None
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    retractions: int = 0
    timings: dict[str, float] | None = None
    """With the first and the last news: seconds `queue`, `ttft`, `decode`, `total`, as far as they
    are known.
    """
    logprobs: Logprobs | None = None
    prompt_logprobs: Logprobs | None = None
    options: TextOptions | None = None
    """With the first news."""
    jump_forward_tokens: int = 0
    """Of the output so far, those that a constraint forced and that the model was not asked for."""
    brought: tuple[int, int] | None = None
    """Of the cached tokens those that came from host memory and from the disk; None: none did."""
    embedding: bytes | None = None
    """With the last news of a pooled prompt: its vector, as little-endian float32."""
    cache_miss: CacheMiss | None = None
    """With the first and the last news, where it was asked for and is not nothing."""
    marks: list[tuple[str, float, int]] | None = None
    """With the last news: `phloem.scheduler.Mark`s, in seconds since the request arrived."""


class TokenBatch(_Message):
    """The news of a step."""

    news: list[TokenNews]


class TextNews(_Part):
    """`TokenNews` with its text: what has become certain, half characters and stop strings held
    back.
    """

    rid: str
    text: str
    token_ids: list[int]
    finish: Finish | None
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    retractions: int = 0
    timings: dict[str, float] | None = None
    logprobs: Logprobs | None = None
    prompt_logprobs: Logprobs | None = None
    jump_forward_tokens: int = 0
    brought: tuple[int, int] | None = None
    embedding: bytes | None = None
    cache_miss: CacheMiss | None = None
    marks: list[tuple[str, float, int]] | None = None


class TextBatch(_Message):
    """The news of a step, as text."""

    news: list[TextNews]
