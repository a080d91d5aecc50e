"""How well a model foretells a text: the mean negative log-likelihood of its tokens.

Owns the cutting into windows; what runs is the path that serves prompt logprobs, KV cache included,
so that a rounding of weights or of the cache shows as it does in service.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from phloem.kernels import KVCache
from phloem.model_runner.models import LlamaModel
from phloem.model_runner.runner import ModelRunner
from phloem.scheduler import SamplingBatch, SamplingParams
from phloem.scheduler.ports import ModelWorkerBatch, PromptLogprobRequest


@dataclass(frozen=True, slots=True)
class Likelihood:
    """Of a text under a model."""

    nll: float
    """Mean negative log-likelihood of a token, in nats."""
    num_tokens: int
    """Tokens that were foretold."""

    @property
    def perplexity(self) -> float:
        """`exp(nll)`: among how many equally likely tokens the model seems to choose."""
        return math.exp(self.nll)


def likelihood(model: LlamaModel, kv: KVCache, ids: Sequence[int], window: int = 512) -> Likelihood:
    """Foretell each token of `ids` from those before it in its window.

    Windows follow one another without overlap, and share nothing; the first token of each is
    given. `kv` needs the slots 0 to `window`, and what is in them is overwritten.

    Raises:
        ValueError: if there are not two tokens in a window, or more than the model was made for.
    """
    if window < 2 or len(ids) < 2 or window > model.config.context_length:
        raise ValueError(
            f"{len(ids)} tokens in windows of {window} foretell nothing: give two tokens or more, "
            f"and windows of 2 to {model.config.context_length}, which the model was made for"
        )
    slots = np.arange(1, window + 1, dtype=np.int32)
    total, count = 0.0, 0
    with ModelRunner(model, kv, slots[None]) as runner:
        for tokens in _windows(ids, window):
            step = runner.forward(_batch(tokens, slots[: len(tokens)]))
            logprobs = runner.result(step).logprobs
            assert logprobs is not None, "prompt logprobs were asked for"
            total -= float(logprobs.prompt[0].logprobs.astype(np.float64).sum())
            count += len(tokens) - 1
    return Likelihood(total / count, count)


def _windows(ids: Sequence[int], window: int) -> Iterator[np.ndarray]:
    tokens = np.array(ids, np.int32)
    for start in range(0, len(tokens), window):
        # One token alone is given, and nothing is foretold from it.
        if len(tokens) - start > 1:
            yield tokens[start : start + window]


def _batch(tokens: np.ndarray, slots: np.ndarray) -> ModelWorkerBatch:
    length = np.array([len(tokens)], np.int32)
    return ModelWorkerBatch(
        rows=np.zeros(1, np.int32),
        query_lens=length,
        seq_lens=length,
        input_ids=tokens,
        out_slots=slots,
        samples=np.array([False]),
        sampling=SamplingBatch.from_params([SamplingParams(temperature=0.0)], [0], [len(tokens)]),
        prompt_logprobs=(PromptLogprobRequest(0, 0, tokens[1:], 0),),
    )
