"""Runs the scheduler's batches on a model; implements `phloem.scheduler.ports.Runner`.

Owns the order of steps, the relay of sampled tokens from one step to the next, and the fate of rows
that fail. With overlap one worker thread does the work, in the order in which it was enqueued;
without, the caller's thread does it at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from phloem.kernels import GreedySteps, KVCache, KVLayer
from phloem.model_runner.batch import PreparedBatch, prepare
from phloem.model_runner.greedy_path import GreedyPath
from phloem.model_runner.models import LlamaModel
from phloem.model_runner.pooling import Pooler
from phloem.model_runner.prompt_logprobs import prompt_logprobs
from phloem.model_runner.relay import Relay
from phloem.model_runner.sampler import (
    NOT_FINITE,
    Sampled,
    Sampler,
    bits_of_rows,
    greedy,
    wants_greedy_only,
)
from phloem.model_runner.work import Inline, Pending, Worker
from phloem.scheduler.ports import (
    Logprobs,
    ModelWorkerBatch,
    PromptLogprobs,
    StepResult,
    TokenMasks,
)


@dataclass(frozen=True, slots=True)
class _Forwarded:
    """What the forward pass leaves for sampling."""

    hidden: Tensor
    """[n, hidden] the last states of the rows that sample."""
    rows: npt.NDArray[np.int64]
    """[n] those rows of the batch."""
    errors: Mapping[int, str]
    """Of rows that do not sample; what is wrong with the others shows in their logits."""
    prompt: Mapping[int, PromptLogprobs]
    embeddings: Mapping[int, npt.NDArray[np.float32]]


@dataclass(slots=True, eq=False)
class RunnerStep:
    """A step in flight."""

    batch: ModelWorkerBatch
    forwarded: Pending[_Forwarded] | Pending[GreedySteps] | None
    sampled: Pending[StepResult] | None = None
    whole: Pending[StepResult] | None = None
    """What `sample` would make, where the forward pass has made it already, and is None then."""


class ModelRunner:
    """Implements `Runner` on one model, one KV pool and one row table.

    `row_table` `[max_rows, max_len]` int32 is shared with the scheduler and read in `forward`,
    before it returns; slots below a row's `seq_len` must stay the row's until the step's result was
    taken. A batch's `rows`, the arrays of its `sampling` and the masks are read later: they must
    not change before that.

    `layer_ready(i)` is called, by the thread that computes, in each step before it uses layer i: it
    waits where KV is still being brought there.
    """

    def __init__(
        self,
        model: LlamaModel,
        kv_pool: KVCache,
        row_table: npt.NDArray[np.int32],
        *,
        overlap: bool = False,
        layer_ready: Callable[[int], None] | None = None,
    ) -> None:
        self._model = model
        self._kv_pool = kv_pool if layer_ready is None else _AwaitedKV(kv_pool, layer_ready)
        self._row_table = row_table
        self._sampler = Sampler(model.ops)
        self._pooler = Pooler(model)
        self._relay = Relay(len(row_table), model.device)
        self._worker: Worker = (
            ThreadPoolExecutor(1, thread_name_prefix="phloem-model") if overlap else Inline()
        )
        steps = None if overlap else model.greedy_steps(self._relay.on_host)
        self._greedy_path: GreedyPath | None = None
        if steps is not None:
            self._greedy_path = GreedyPath(
                model, kv_pool, row_table, self._relay, steps, layer_ready
            )

    def __enter__(self) -> ModelRunner:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Finish what was enqueued and end the worker thread; the runner takes no more steps."""
        self._worker.shutdown(wait=True)

    def forward(self, batch: ModelWorkerBatch) -> RunnerStep:
        """See `Runner.forward`.

        Raises:
            ValueError: if the batch contradicts itself; nothing was enqueued then.
        """
        if self._greedy_path is not None:
            if not batch.masked and (whole := self._greedy_path.whole(batch)) is not None:
                return RunnerStep(batch, None, whole=whole)
            if batch.masked and (done := self._greedy_path.forward(batch)) is not None:
                return RunnerStep(batch, done)
        prepared = prepare(batch, self._row_table, self._model.ops, self._model.attention_spec)
        return RunnerStep(batch, self._worker.submit(self._forward, batch, prepared))

    def sample(self, step: RunnerStep, masks: TokenMasks | None) -> None:
        """See `Runner.sample`."""
        if step.sampled is not None:
            raise RuntimeError("this step was sampled already: sample a step once")
        if masks is not None and not step.batch.masked:
            raise ValueError("masks come for a batch that is not masked: make it with masked=True")
        step.sampled = step.whole or self._worker.submit(self._sample, step, masks)

    def result(self, step: RunnerStep) -> StepResult:
        """See `Runner.result`; a step without sampling rows needs no `sample` before it."""
        if step.sampled is None:
            if step.batch.samples.any():
                raise RuntimeError("this step has no result yet: call sample before result")
            self.sample(step, None)
        assert step.sampled is not None
        return step.sampled.result()

    @torch.inference_mode()
    def _forward(self, batch: ModelWorkerBatch, prepared: PreparedBatch) -> _Forwarded:
        if prepared.relayed is not None:
            self._relay.fill(prepared.forward.input_ids, prepared.relayed)
        all_wanted = batch.prompt_logprobs or batch.pooling
        wanted = None if all_wanted else prepared.last_tokens
        hidden = self._model.forward(prepared.forward, self._kv_pool, wanted)
        last = hidden
        if wanted is None and prepared.last_tokens is not None:
            last = hidden[prepared.last_tokens]
        rows = np.flatnonzero(batch.samples)
        errors: dict[int, str] = {}
        if len(rows) < len(last):
            errors = _not_finite(last, np.flatnonzero(~batch.samples))
            last = last[torch.from_numpy(rows).to(last.device)]
        prompt = prompt_logprobs(self._model, hidden, prepared.starts, batch.prompt_logprobs)
        embeddings = self._pool(batch, prepared, hidden)
        for i, vector in embeddings.items():
            if not np.isfinite(vector).all():
                errors[i] = NOT_FINITE
        return _Forwarded(last, rows, errors, prompt, embeddings)

    def _pool(
        self, batch: ModelWorkerBatch, prepared: PreparedBatch, hidden: Tensor
    ) -> Mapping[int, npt.NDArray[np.float32]]:
        if not batch.pooling:
            return {}
        lengths = batch.query_lens, batch.seq_lens
        return self._pooler.pool(hidden, prepared.starts, batch.rows, lengths, batch.pooling)

    def _sample(self, step: RunnerStep, masks: TokenMasks | None) -> StepResult:
        assert step.forwarded is not None, "a whole step is sampled with it"
        forwarded = step.forwarded.result()
        if isinstance(forwarded, _Forwarded):
            return self._sample_hidden(step.batch, forwarded, masks)
        assert self._greedy_path is not None, "only it makes greedy steps"
        return self._greedy_path.sample(step.batch, forwarded, masks)

    @torch.inference_mode()
    def _sample_hidden(
        self, batch: ModelWorkerBatch, forwarded: _Forwarded, masks: TokenMasks | None
    ) -> StepResult:
        if not len(forwarded.rows):
            return _result(batch, forwarded, None)
        if not wants_greedy_only(batch.sampling, forwarded.rows):
            logits = self._model.logits(forwarded.hidden)
            newest = self._relay.newest(batch.rows)
            sampled = self._sampler(logits, forwarded.rows, batch.sampling, masks, newest)
        else:
            bits = None if masks is None else bits_of_rows(masks, forwarded.rows)
            sampled = greedy(self._model.greedy(forwarded.hidden, bits), forwarded.rows)
        # Rows that failed relay token 0: a later step may be in flight for them, and is dropped.
        self._relay.put(batch.rows[forwarded.rows], sampled.ids)
        return _result(batch, forwarded, sampled)


def _not_finite(hidden: Tensor, rows: npt.NDArray[np.int64]) -> dict[int, str]:
    finite = torch.isfinite(hidden[torch.from_numpy(rows).to(hidden.device)]).all(dim=-1)
    return dict.fromkeys(rows[~finite.cpu().numpy()].tolist(), NOT_FINITE)


def _result(batch: ModelWorkerBatch, forwarded: _Forwarded, sampled: Sampled | None) -> StepResult:
    counts = np.zeros(batch.num_rows, np.int32)
    if sampled is None:
        empty = Logprobs(np.empty(0, np.float32), (), forwarded.prompt)
        logprobs = empty if forwarded.prompt else None
        ids = np.empty(0, np.int32)
        return StepResult(ids, counts, logprobs, forwarded.errors, forwarded.embeddings)
    rows, keep = forwarded.rows, sampled.ok
    counts[rows[keep]] = 1
    logprobs = None
    if forwarded.prompt or (batch.sampling.top_logprobs[rows] >= 0).any():
        top = tuple(t for t, kept in zip(sampled.top_logprobs, keep, strict=True) if kept)
        logprobs = Logprobs(sampled.chosen_logprobs[keep], top, forwarded.prompt)
    ids = sampled.ids.cpu().numpy()[keep].astype(np.int32)
    errors = sampled.errors | dict(forwarded.errors)
    return StepResult(ids, counts, logprobs, errors, forwarded.embeddings)


class _AwaitedKV:
    """A KV cache whose layers are waited for."""

    def __init__(self, kv_pool: KVCache, ready: Callable[[int], None]) -> None:
        self._kv_pool = kv_pool
        self._ready = ready

    def layer(self, index: int, /) -> KVLayer:
        self._ready(index)
        return self._kv_pool.layer(index)
