"""A runner without a model: it emits the tokens that a script gives, through a real row table and
real slots.

It keeps a pretended KV cache that holds, for each slot, the token and the position stored there,
writes and reads it as a model would, and hands the script the history that it *read*. So a slot
that was freed too early, shared wrongly or left out of a row changes the output, or is reported.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from phloem.scheduler.ports import (
    RELAYED,
    Logprobs,
    ModelWorkerBatch,
    PromptLogprobs,
    StepResult,
    TokenMasks,
    TopLogprobs,
)
from phloem.scheduler.randomness import uniform

Distribution = Mapping[int, float]
"""Token ids with their probabilities, or with weights of any sum."""
Script = Callable[[npt.NDArray[np.int32]], "int | Distribution"]
"""What follows a history of token ids (prompt and output so far)."""


EMBEDDING_SIZE = 8
"""Of the pretended hidden states that prompts are pooled from."""


class ScriptedRowError(Exception):
    """Raised by a script to make the row fail that it is asked about; and where a row reads a
    slot that does not hold what it must.
    """


@dataclass(frozen=True)
class ScriptedResponses:
    """A script of prompts and the outputs that they get.

    The longest listed prompt that the history starts with counts; after its output, and for any
    other history, `otherwise` follows (an end-of-text id, usually).
    """

    responses: Sequence[tuple[Sequence[int], Sequence[int | Distribution]]]
    otherwise: int

    def __call__(self, history: npt.NDArray[np.int32]) -> int | Distribution:
        """What follows `history`."""
        best: tuple[int, int | Distribution] = (-1, self.otherwise)
        for prompt, output in self.responses:
            n = len(prompt)
            if best[0] < n <= len(history) and np.array_equal(history[:n], np.asarray(prompt)):
                done = len(history) - n
                best = (n, output[done] if done < len(output) else self.otherwise)
        return best[1]


@dataclass(slots=True, eq=False)
class _Step:
    batch: ModelWorkerBatch
    masks: TokenMasks | None = None
    result: StepResult | Exception | None = None


class ScriptedRunner:
    """Runs batches by a script; implements `Runner`.

    Steps are computed as late as the contract allows, when a result is asked for, so that whatever
    a caller changes too early shows.

    Args:
        row_table: int32 [max_rows, max_len], shared with the scheduler.
        num_slots: slots of the pretended KV cache.
        script: what follows a history.
        vocab_size: bounds the ids that are drawn where a rule forbids all of a script's.
        remember: whether `steps` has all batches that were run, which takes ever more memory.
    """

    def __init__(
        self,
        row_table: npt.NDArray[np.int32],
        num_slots: int,
        script: Script,
        vocab_size: int,
        *,
        remember: bool = True,
    ) -> None:
        self._row_table = row_table
        self._script = script
        self._vocab_size = vocab_size
        self.kv = np.full((num_slots, 2), -1, np.int32)
        """The pretended KV cache: token and position of each slot."""
        self._tokens, self._positions = self.kv.T
        self._relay = np.full(len(row_table), -1, np.int32)
        self._sums: dict[int, npt.NDArray[np.float64]] = {}
        """By row, of the pretended hidden states so far of a prompt whose mean is wanted."""
        self._queue: deque[_Step] = deque()
        self.steps: list[ModelWorkerBatch] = []
        """Every batch that was run, for tests to look at."""
        self._remember = remember

    def forward(self, batch: ModelWorkerBatch) -> _Step:
        """Enqueue."""
        step = _Step(batch)
        self._queue.append(step)
        return step

    def sample(self, step: _Step, masks: TokenMasks | None) -> None:
        """Note the masks; the sampling happens with the rest."""
        step.masks = masks

    def result(self, step: _Step) -> StepResult:
        """Compute everything up to this step, in order."""
        while step.result is None:
            earlier = self._queue.popleft()
            if self._remember:
                self.steps.append(earlier.batch)
            try:
                earlier.result = self._run(earlier)
            except Exception as error:  # belongs to that step's caller, not to this one's
                earlier.result = error
        if isinstance(step.result, Exception):
            raise step.result
        return step.result

    def _run(self, step: _Step) -> StepResult:
        batch = step.batch
        tokens: list[int] = []
        counts = np.zeros(batch.num_rows, np.int32)
        chosen: list[float] = []
        top: list[TopLogprobs | None] = []
        self._store(batch)
        prompt, errors = self._score_prompts(batch)
        embeddings = self._pool(batch, errors)
        for i in range(batch.num_rows):
            if not batch.samples[i] or i in errors:
                continue
            try:
                weights = self._weights(step, i, self._history(batch, i))
            except ScriptedRowError as error:
                errors[i] = str(error)
                continue
            token = _draw(weights, batch, i)
            tokens.append(token)
            counts[i] = 1
            chosen.append(_logprob(weights, token))
            n = int(batch.sampling.top_logprobs[i])
            top.append(_top(weights, n) if n > 0 else None)
            self._relay[batch.rows[i]] = token
        return StepResult(
            np.array(tokens, np.int32),
            counts,
            Logprobs(np.array(chosen, np.float32), tuple(top), prompt),
            errors,
            embeddings,
        )

    def _store(self, batch: ModelWorkerBatch) -> None:
        """Write the step's tokens to their slots."""
        ends = np.cumsum(batch.query_lens)
        for i, end in enumerate(ends.tolist()):
            query = slice(end - int(batch.query_lens[i]), end)
            ids = batch.input_ids[query].copy()
            ids[ids == RELAYED] = self._relay[batch.rows[i]]
            slots = batch.out_slots[query]
            self._tokens[slots] = ids
            self._positions[slots] = np.arange(
                batch.seq_lens[i] - batch.query_lens[i], batch.seq_lens[i]
            )

    def _score_prompts(
        self, batch: ModelWorkerBatch
    ) -> tuple[dict[int, PromptLogprobs], dict[int, str]]:
        """The prompt logprobs asked for, and the rows that failed."""
        answers: dict[int, PromptLogprobs] = {}
        errors: dict[int, str] = {}
        for asked in batch.prompt_logprobs:
            start = int(batch.seq_lens[asked.index] - batch.query_lens[asked.index]) + asked.first
            try:
                history = self._history(batch, asked.index)
                weights = [
                    _as_weights(self._script(history[: start + k + 1]))
                    for k in range(len(asked.targets))
                ]
            except ScriptedRowError as error:
                errors[asked.index] = str(error)
                continue
            answers[asked.index] = PromptLogprobs(
                np.array(
                    [_logprob(w, t) for w, t in zip(weights, asked.targets.tolist())], np.float32
                ),
                tuple(_top(w, asked.top) for w in weights) if asked.top else (),
            )
        return answers, errors

    def _pool(
        self, batch: ModelWorkerBatch, errors: dict[int, str]
    ) -> dict[int, npt.NDArray[np.float32]]:
        """The vectors that are due; adds the rows that failed to `errors`."""
        pooled = {}
        for asked in batch.pooling:
            i, row = asked.index, int(batch.rows[asked.index])
            start = int(batch.seq_lens[i] - batch.query_lens[i])
            try:
                history = self._history(batch, i)
                self._script(history)
            except ScriptedRowError as error:
                errors[i] = str(error)
                continue
            if start == 0:
                self._sums[row] = np.zeros(EMBEDDING_SIZE)
            states = np.array([hidden_state(history[: p + 1]) for p in range(start, len(history))])
            if asked.mode == "last":
                pooled[i] = states[-1].astype(np.float32)
                continue
            if row not in self._sums:
                continue  # the step of its first chunk failed: the request has ended
            for state in states:
                self._sums[row] = self._sums[row] + state
            if asked.complete:
                pooled[i] = (self._sums.pop(row) / len(history)).astype(np.float32)
        return pooled

    def _history(self, batch: ModelWorkerBatch, i: int) -> npt.NDArray[np.int32]:
        length = int(batch.seq_lens[i])
        slots = self._row_table[batch.rows[i], :length]
        wrong = np.nonzero(self._positions[slots] != np.arange(length))[0]
        if len(wrong):
            p = int(wrong[0])
            raise ScriptedRowError(
                f"row {batch.rows[i]} reads slot {slots[p]} at position {p}, but the slot holds "
                f"position {self._positions[slots[p]]}: it was overwritten or never written"
            )
        return self._tokens[slots]

    def _weights(self, step: _Step, i: int, history: npt.NDArray[np.int32]) -> dict[int, float]:
        weights = _as_weights(self._script(history))
        forbidden = {int(t) for row, ids in step.batch.sampling.suppressed if row == i for t in ids}
        masks = [] if step.masks is None else step.masks.bits[step.masks.index == i]

        def allowed(token: int) -> bool:
            return token not in forbidden and all(
                int(bits[token // 32]) >> (token % 32) & 1 for bits in masks
            )

        kept = {token: weight for token, weight in weights.items() if allowed(token)}
        if kept:
            return kept
        for token in range(self._vocab_size):
            if allowed(token):
                return {token: 1.0}
        raise ScriptedRowError("no token is allowed")


def hidden_state(history: npt.NDArray[np.int32]) -> npt.NDArray[np.float64]:
    """The pretended hidden state `[EMBEDDING_SIZE]` at the last token of a history."""
    places = np.arange(1, len(history) + 1)
    phases = (history * places).sum() + np.arange(EMBEDDING_SIZE) * int(history[-1])
    state: npt.NDArray[np.float64] = np.sin(1.0 + phases)
    return state


def _as_weights(given: int | Distribution) -> dict[int, float]:
    return dict(given) if isinstance(given, Mapping) else {int(given): 1.0}


def _draw(weights: Mapping[int, float], batch: ModelWorkerBatch, i: int) -> int:
    sampling = batch.sampling
    if sampling.temperature[i] == 0:
        return max(weights, key=lambda token: (weights[token], -token))
    left = uniform(sampling.seeds[i : i + 1], sampling.positions[i : i + 1])[0] * sum(
        weights.values()
    )
    for token in sorted(weights):
        left -= weights[token]
        if left < 0:
            return token
    return max(weights)


def _logprob(weights: Mapping[int, float], token: int) -> float:
    weight = weights.get(token, 0.0)
    return math.log(weight / sum(weights.values())) if weight > 0 else -math.inf


def _top(weights: Mapping[int, float], n: int) -> TopLogprobs:
    best = sorted(weights, key=lambda token: (-weights[token], token))[:n]
    return TopLogprobs(
        np.array(best, np.int32), np.array([_logprob(weights, t) for t in best], np.float32)
    )
