"""The requests of one step, and the flat arrays that a runner gets for them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from phloem.mem_pool import Lease
from phloem.scheduler.ports import RELAYED, ModelWorkerBatch, PromptLogprobRequest
from phloem.scheduler.request import Request
from phloem.scheduler.sampling import SamplingBatch, TokenHistory


@dataclass(frozen=True, slots=True)
class BatchRow:
    """One request's share of a step: the tokens `[start, end)` of it are computed."""

    request: Request
    lease: Lease
    start: int
    end: int
    samples: bool
    """Whether the step yields the token at position `end`."""

    @property
    def query_len(self) -> int:
        """Tokens to compute."""
        return self.end - self.start


@dataclass(slots=True)
class ScheduleBatch:
    """The rows of one step, prefill chunks before decodes, each in the order of scheduling."""

    rows: list[BatchRow] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[BatchRow]:
        return iter(self.rows)

    def to_worker_batch(
        self, row_table: npt.NDArray[np.int32], eos_token_ids: Sequence[int]
    ) -> ModelWorkerBatch:
        """The flat form. Call it before the step counts as in flight (`pending` not yet raised).

        Args:
            row_table: int32 [max_rows, max_len], the slot of each position of each row.
            eos_token_ids: suppressed, with a row's own stop ids, below its `min_new_tokens`.
        """
        slots = [row_table[r.lease.row, r.start : r.end] for r in self.rows]
        requests = [row.request for row in self.rows]
        return ModelWorkerBatch(
            rows=np.array([r.lease.row for r in self.rows], np.int32),
            query_lens=np.array([r.query_len for r in self.rows], np.int32),
            seq_lens=np.array([r.end for r in self.rows], np.int32),
            input_ids=np.concatenate([_input_ids(r) for r in self.rows]),
            out_slots=np.concatenate(slots),
            samples=np.array([r.samples for r in self.rows], np.bool_),
            sampling=SamplingBatch.from_params(
                [r.params for r in requests],
                seeds=(r.seed for r in requests),
                positions=(row.end for row in self.rows),
                suppressed=tuple(self._suppressed(eos_token_ids)),
                histories=tuple(self._histories()),
            ),
            prompt_logprobs=tuple(self._prompt_logprobs()),
        )

    def _suppressed(
        self, eos_token_ids: Sequence[int]
    ) -> Iterator[tuple[int, npt.NDArray[np.int32]]]:
        for i, row in enumerate(self.rows):
            request = row.request
            if row.samples and row.end - request.num_prompt < request.params.min_new_tokens:
                ids = dict.fromkeys((*eos_token_ids, *request.params.stop_token_ids))
                yield i, np.fromiter(ids, np.int32, len(ids))

    def _histories(self) -> Iterator[TokenHistory]:
        for i, row in enumerate(self.rows):
            request = row.request
            if row.samples and request.params.has_penalties:
                yield TokenHistory(
                    i,
                    request.prompt_ids,
                    # Copied: under overlap the request grows before the step reads this.
                    request.output_ids.copy(),
                    pending=request.num_tokens < row.end,
                )

    def _prompt_logprobs(self) -> Iterator[PromptLogprobRequest]:
        for i, row in enumerate(self.rows):
            request = row.request
            first = request.prompt_logprobs_next
            if first is None or row.start >= request.num_prompt:
                continue
            first = max(first, row.start + 1)
            targets = request.prompt_ids[first : row.end + 1]
            if len(targets):
                yield PromptLogprobRequest(
                    i, first - 1 - row.start, targets, request.params.top_logprobs or 0
                )


def _input_ids(row: BatchRow) -> npt.NDArray[np.int32]:
    known = row.request.tokens[row.start : row.end]
    missing = row.query_len - len(known)
    if not missing:
        return known
    return np.concatenate([known, np.full(missing, RELAYED, np.int32)])
