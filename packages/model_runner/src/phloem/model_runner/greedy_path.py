"""The short way of the commonest step: every row wants its likeliest token, and no more.

A decode of few rows takes so little that tensors, plans and parameters made anew for each step
would be a tenth of it. What it gives is the same, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from phloem.kernels import GreedySteps, KVCache
from phloem.model_runner.models import LlamaModel
from phloem.model_runner.relay import Relay
from phloem.model_runner.sampler import bits_of_rows, greedy
from phloem.model_runner.work import Done
from phloem.scheduler.ports import ModelWorkerBatch, StepResult, TokenMasks


class GreedyPath:
    """Runs such steps at once, in the caller's thread, on a model whose backend has the way."""

    def __init__(
        self,
        model: LlamaModel,
        kv_pool: KVCache,
        row_table: npt.NDArray[np.int32],
        relay: Relay,
        steps: GreedySteps,
        layer_ready: Callable[[int], None] | None = None,
    ) -> None:
        """`steps` are the model's, with the relay to write to, and it gives more of them where
        several steps are in flight. `layer_ready` is `ModelRunner`'s.
        """
        self._model = model
        self._kv_pool = kv_pool
        self._row_table = row_table
        self._relay = relay
        self._free = [steps]
        """Of no step in flight; one that is dropped before it is sampled takes its own with it."""
        self._ones = np.ones(1, np.int32)
        """The counts of a result, the same array again where there are as many."""
        self._layer_ready = layer_ready

    def whole(self, batch: ModelWorkerBatch) -> Done[StepResult] | None:
        """Run a batch to its tokens, if no masks will come for it; None, and nothing was done, if
        it has to go the general way.
        """
        if not _is_greedy(batch):
            return None
        try:
            steps = self._run(batch, choose=True)
            return None if steps is None else Done(self.sample(batch, steps, None), None)
        except Exception as error:  # it is the step's, as on the general way
            return Done(None, error)

    def forward(self, batch: ModelWorkerBatch) -> Done[GreedySteps] | None:
        """Run a batch's layers, or None likewise."""
        if not _is_greedy(batch):
            return None
        try:
            steps = self._run(batch, choose=False)
        except Exception as error:  # as above
            return Done(None, error)
        return None if steps is None else Done(steps, None)

    def _run(self, batch: ModelWorkerBatch, choose: bool) -> GreedySteps | None:
        if self._layer_ready is not None:
            for layer in range(self._model.config.num_layers):
                self._layer_ready(layer)
        steps = self._free.pop() if self._free else self._new_steps()
        ran = steps.run(
            self._row_table,
            batch.rows,
            batch.query_lens,
            batch.seq_lens,
            batch.input_ids,
            batch.out_slots,
            self._kv_pool,
            choose,
        )
        if ran:
            return steps
        self._free.append(steps)
        return None

    def sample(
        self, batch: ModelWorkerBatch, steps: GreedySteps, masks: TokenMasks | None
    ) -> StepResult:
        """The tokens of a step that `forward` ran."""
        bits = None if masks is None else bits_of_rows(masks, np.arange(batch.num_rows))
        tokens = steps.tokens(bits)
        if tokens is None:
            result = self._some(batch, steps)
        else:
            if len(tokens) != len(self._ones):
                self._ones = np.ones(len(tokens), np.int32)
            result = StepResult(tokens, self._ones)
        self._free.append(steps)
        return result

    def _new_steps(self) -> GreedySteps:
        steps = self._model.greedy_steps(self._relay.on_host)
        assert steps is not None, "a model that had a short way has none any more"
        return steps

    def _some(self, batch: ModelWorkerBatch, steps: GreedySteps) -> StepResult:
        """Where some rows have failed."""
        sampled = greedy(steps.found(), np.arange(batch.num_rows))
        self._relay.put(batch.rows, sampled.ids)
        ids = sampled.ids.numpy()[sampled.ok].astype(np.int32)
        return StepResult(ids, sampled.ok.astype(np.int32), row_errors=sampled.errors)


def _is_greedy(batch: ModelWorkerBatch) -> bool:
    """Whether each row wants its likeliest token, and no more."""
    sampling = batch.sampling
    return (
        sampling.all_greedy
        and not (sampling.logit_bias or sampling.histories or sampling.suppressed)
        and not (batch.prompt_logprobs or batch.pooling)
        and False not in batch.samples.tolist()
    )
