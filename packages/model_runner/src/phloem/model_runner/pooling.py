"""One vector for a prompt: its hidden states, after the final norm, pooled.

Owns the running sums of means. They go from position to position in float64, each state added to
the sum of those before it, so that their bits do not depend on how a prompt was cut into steps or
on what else is in them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from torch import Tensor

from phloem.model_runner.models import LlamaModel
from phloem.scheduler.ports import PoolingRequest

_Sum = npt.NDArray[np.float64]
STATES_AT_ONCE = 256
"""Hidden states that are held in float64 at a time."""


class Pooler:
    """Answers the pooling requests of steps that come in order."""

    def __init__(self, model: LlamaModel) -> None:
        self._model = model
        self._sums: dict[int, _Sum] = {}
        """By row of the row table, of prompts that have not ended. What a prompt leaves that never
        ends is dropped when another one begins in its row."""

    def pool(
        self,
        hidden: Tensor,
        starts: npt.NDArray[np.int64],
        rows: npt.NDArray[np.int32],
        lengths: tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]],
        requests: Sequence[PoolingRequest],
    ) -> dict[int, npt.NDArray[np.float32]]:
        """The vectors `[hidden]` that are due, by row of the batch; none of a row whose chunks
        before never came here.

        `hidden` `[T, hidden]` are the states of all tokens before the final norm, of which row i
        has those from `starts[i]` on; `rows` `[B]` are the rows of the row table, and `lengths` the
        batch's `query_lens` and `seq_lens`.
        """
        pooled = {}
        query_lens, seq_lens = lengths
        for asked in requests:
            i = asked.index
            start, count, length = int(starts[i]), int(query_lens[i]), int(seq_lens[i])
            states = hidden[start : start + count]
            if asked.mode == "last":
                pooled[i] = self._normed(states[-1:])[0].astype(np.float32)
                continue
            row = int(rows[i])
            if count < length and row not in self._sums:
                continue  # the step of an earlier chunk failed: the request has ended
            total = self._add(None if count == length else self._sums.pop(row), states)
            if asked.complete:
                self._sums.pop(row, None)
                pooled[i] = (total / length).astype(np.float32)
            else:
                self._sums[row] = total
        return pooled

    def _add(self, total: _Sum | None, states: Tensor) -> _Sum:
        """A sum so far and these states, one after the other; None: there are none before them."""
        for part in states.split(STATES_AT_ONCE):
            terms = self._normed(part)
            if total is not None:
                terms = np.concatenate((total[None], terms))
            # Of numpy's sums the one whose order is fixed: each is made of the one before it.
            total = np.add.accumulate(terms, axis=0)[-1]
        assert total is not None, "a row computes at least one token"
        return total

    def _normed(self, states: Tensor) -> _Sum:
        normed: _Sum = self._model.final_states(states).double().cpu().numpy()
        return normed
