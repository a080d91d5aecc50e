"""The short way of the commonest step: every row wants its likeliest token, and no more.

A decode of few rows takes so little that tensors, plans and parameters made anew for each step
would be a tenth of it. What it gives is the same, bit for bit.
"""

from __future__ import annotations

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
    ) -> None:
        """`steps` are the model's, and it gives more of them where several steps are in flight."""
        self._model = model
        self._kv_pool = kv_pool
        self._row_table = row_table
        self._relay = relay
        self._free = [steps]
        """Of no step in flight; one that is dropped before it is sampled takes its own with it."""

    def forward(self, batch: ModelWorkerBatch) -> Done[GreedySteps] | None:
        """Run a batch's layers; None, and nothing was done, if it has to go the general way."""
        if not batch.sampling.all_greedy or batch.sampling.changes_logits:
            return None
        if batch.prompt_logprobs or batch.pooling or not batch.samples.all():
            return None
        steps = self._free.pop() if self._free else self._model.greedy_steps()
        assert steps is not None, "a model that had a short way has none any more"
        try:
            ran = steps.run(
                self._row_table,
                batch.rows,
                batch.query_lens,
                batch.seq_lens,
                batch.input_ids,
                batch.out_slots,
                self._kv_pool,
            )
        except Exception as error:  # it is the step's, as on the general way
            return Done(None, error)
        if ran:
            return Done(steps, None)
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
            self._relay.put_on_host(batch.rows, tokens)
            result = StepResult(tokens, np.ones(batch.num_rows, np.int32))
        self._free.append(steps)
        return result

    def _some(self, batch: ModelWorkerBatch, steps: GreedySteps) -> StepResult:
        """Where some rows have failed."""
        sampled = greedy(steps.found(), np.arange(batch.num_rows))
        self._relay.put(batch.rows, sampled.ids)
        ids = sampled.ids.numpy()[sampled.ok].astype(np.int32)
        return StepResult(ids, sampled.ok.astype(np.int32), row_errors=sampled.errors)
