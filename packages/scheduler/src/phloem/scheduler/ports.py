"""What the scheduler asks of others: to run a batch, to notice stop strings, to follow constraints.

The contracts are Protocols over plain data (`ModelWorkerBatch`, `StepResult`), so a runner on a
GPU, the scripted runner of the tests and somebody else's engine fit alike. This module holds no
behaviour.

Nobody changes a batch or a result, nor their arrays, once they were handed over. Python is not told
so (`frozen`) of those that each step makes: it sets the fields of frozen ones by a detour, which
costs more, between two steps where all is cold, than the rest of their making.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from phloem.scheduler.sampling import SamplingBatch

RELAYED = -1
"""Stands in `input_ids` for a token that the runner sampled for the same row in a step still in
flight.
"""

Step = Any
"""A runner's own handle of a step in flight."""


@dataclass(frozen=True, slots=True)
class PromptLogprobRequest:
    """Which prompt tokens of one batch row want their logprobs from this step.

    The logits at query position `first + i` of the row (counted from the row's first query token of
    this step) give the logprob of `targets[i]`, the prompt token that follows it.
    """

    index: int
    first: int
    targets: npt.NDArray[np.int32]
    top: int


PoolingMode = Literal["mean", "last"]
"""How the hidden states of a prompt become one vector: the mean over all of its tokens, or that of
its last token.
"""


@dataclass(frozen=True, slots=True)
class PoolingRequest:
    """One batch row whose prompt is pooled to a vector; it makes no tokens.

    For "mean" the row computes all of its prompt, maybe in several steps, of which the first begins
    at position 0: the runner keeps the sum of each row from step to step, and begins anew at
    position 0, whatever it kept. For "last" there is a request in the step that ends the prompt.
    """

    index: int
    mode: PoolingMode
    complete: bool
    """Whether this step ends the prompt, so that the vector is due."""


@dataclass(slots=True)
class ModelWorkerBatch:
    """One step for the runner: prefill chunks and decodes together, as flat arrays.

    With B rows and T tokens. Row i feeds its `query_lens[i]` newest tokens, at positions
    `[seq_lens[i] - query_lens[i], seq_lens[i])`; a decode is a row of query length 1. Its arrays
    are the scheduler's, which goes on with some of them: a runner reads them only.
    """

    rows: npt.NDArray[np.int32]
    """[B] the row of the row table where row i's slots stand."""
    query_lens: npt.NDArray[np.int32]
    """[B] tokens to compute in this step, at least 1."""
    seq_lens: npt.NDArray[np.int32]
    """[B] tokens of the request whose KV exists after this step."""
    input_ids: npt.NDArray[np.int32]
    """[T] token ids; `RELAYED` where the runner knows the token and the scheduler does not yet."""
    out_slots: npt.NDArray[np.int32]
    """[T] the KV slot that each token's K and V go to."""
    samples: npt.NDArray[np.bool_]
    """[B] whether row i yields a token; False in a chunk that does not end its prompt."""
    sampling: SamplingBatch
    prompt_logprobs: tuple[PromptLogprobRequest, ...] = ()
    pooling: tuple[PoolingRequest, ...] = ()
    masked: bool = True
    """Whether masks may come with `Runner.sample`; where not, tokens can be chosen at once."""

    @property
    def num_rows(self) -> int:
        """B."""
        return len(self.rows)

    @property
    def num_tokens(self) -> int:
        """T."""
        return len(self.input_ids)


@dataclass(frozen=True, slots=True)
class TokenMasks:
    """Which tokens some rows of a batch may produce, as bits.

    `bits[j]` belongs to batch row `index[j]`; token t is allowed where bit `t % 32` of word `t //
    32` is set.
    """

    index: npt.NDArray[np.int32]
    """[n] rows of the batch."""
    bits: npt.NDArray[np.int32]
    """[n, ceil(vocab / 32)]"""


@dataclass(frozen=True, slots=True)
class TopLogprobs:
    """The likeliest tokens at one position, likeliest first."""

    token_ids: npt.NDArray[np.int32]
    """[n]"""
    logprobs: npt.NDArray[np.float32]
    """[n] natural logarithms, of the model's own distribution (before bias, penalties and filters).
    """


@dataclass(frozen=True, slots=True)
class PromptLogprobs:
    """Logprobs of a run of prompt tokens, in order; the answer to one `PromptLogprobRequest`."""

    logprobs: npt.NDArray[np.float32]
    top: tuple[TopLogprobs, ...]
    """One entry a token where top logprobs were asked for, else empty."""


@dataclass(frozen=True, slots=True)
class Logprobs:
    """The logprobs of a step: of the sampled tokens, ragged like them, and of prompts by row."""

    chosen: npt.NDArray[np.float32]
    """[sum(counts)] NaN for rows that did not ask."""
    top: tuple[TopLogprobs | None, ...]
    """[sum(counts)] None where a row asked for no top logprobs."""
    prompt: Mapping[int, PromptLogprobs] = field(default_factory=dict)


@dataclass(slots=True)
class StepResult:
    """What a step produced. Ragged: a row may yield no token (a middle chunk), one, or several.

    The scheduler keeps its arrays, and feeds them to later steps.
    """

    token_ids: npt.NDArray[np.int32]
    """[sum(counts)]"""
    counts: npt.NDArray[np.int32]
    """[B]"""
    logprobs: Logprobs | None = None
    row_errors: Mapping[int, str] = field(default_factory=dict)
    """Rows that failed (NaN logits, say), with the reason: that request ends, the others go on."""
    embeddings: Mapping[int, npt.NDArray[np.float32]] = field(default_factory=dict)
    """`[hidden]` by row, for each complete `PoolingRequest`: pooled outputs of the model's final
    norm, not normalised to any length. What a row gets depends on its prompt alone, bit for bit
    where the hidden states do: sums of a mean go from position to position, however it was cut.
    """


class Runner(Protocol):
    """Runs batches on a model. Steps complete in the order in which they were enqueued."""

    def forward(self, batch: ModelWorkerBatch) -> Step:
        """Enqueue the forward pass of a batch and return at once."""
        ...

    def sample(self, step: Step, masks: TokenMasks | None) -> None:
        """Enqueue the sampling of a step; later than its forward, maybe, but before `result`."""
        ...

    def result(self, step: Step) -> StepResult:
        """Wait for a step.

        Raises:
            Exception: what the forward pass raised; the step is over then, all of its rows failed.
        """
        ...


class StopMatcher(Protocol):
    """Watches one request's output for its stop strings."""

    def push(self, token_id: int) -> str | None:
        """Take the next output token; return the stop string that it completes, if any."""
        ...


class StopChecker(Protocol):
    """Makes matchers; the port to whoever can turn token ids into text."""

    def matcher(self, stop: tuple[str, ...]) -> StopMatcher:
        """A fresh matcher for these stop strings."""
        ...


class TokenMatcher(Protocol):
    """Follows one output that a constraint holds for; `phloem.grammar`'s matchers are such.

    The scheduler knows nothing of constraints but this.
    """

    def accept(self, token: int) -> bool:
        """Take the next token; False, and nothing changes, if it is forbidden here."""
        ...

    def fill_mask(
        self, mask: npt.NDArray[np.int32], row: int, tokens_left: int | None = None
    ) -> None:
        """Write which tokens may come next into one row of `mask`, int32 [rows, ceil(vocab / 32)]:
        token t may where bit `t % 32` of word `t // 32` is set. Tokens that end an output are set
        where it may end. With `tokens_left`, only those after which it can be completed within
        `tokens_left - 1` more are set, if there are such and the matcher can tell.
        """
        ...

    def rollback(self, count: int) -> None:
        """Take the last `count` accepted tokens back."""
        ...

    def fork(self) -> TokenMatcher:
        """An independent one in the same state."""
        ...

    @property
    def is_complete(self) -> bool:
        """Whether the output may end here."""
        ...

    @property
    def is_terminated(self) -> bool:
        """Whether nothing may follow."""
        ...

    def forced(self) -> bytes:
        """The text that must come next; empty where there is a choice."""
        ...

    def distance_to_end(self) -> int | None:
        """Tokens that suffice to complete the text; None: it cannot tell."""
        ...


class TextTokenizer(Protocol):
    """Knows what tokens spell; the port to a model's tokenizer."""

    def encode(self, text: bytes) -> Sequence[int] | None:
        """The tokens of a piece out of the middle of a text: no token of a document's beginning
        before it, no blank that is not in it. None where it cannot tell (half a character, say).
        """
        ...

    def token_bytes(self, token: int) -> bytes:
        """What a token spells; nothing for special tokens and those that it does not know."""
        ...
