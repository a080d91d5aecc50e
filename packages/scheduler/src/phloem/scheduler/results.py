"""A step's ragged result, cut into what each row produced."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from phloem.scheduler.ports import Logprobs, PromptLogprobs, StepResult
from phloem.scheduler.request import TokenLogprob


@dataclass(frozen=True, slots=True)
class RowResult:
    """What one row of a batch produced."""

    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...]
    """One entry a token if the step computed logprobs at all, else empty."""
    prompt_logprobs: PromptLogprobs | None
    error: str | None
    embedding: npt.NDArray[np.float32] | None
    """Of a prompt that is pooled and that the step has ended."""


class RowResults:
    """What a step produced, row by row, for those rows that are looked at one at a time."""

    def __init__(self, result: StepResult) -> None:
        self._result = result

    @cached_property
    def ends(self) -> npt.NDArray[np.int64]:
        """[B] where each row's tokens end in `token_ids`."""
        return np.cumsum(self._result.counts, dtype=np.int64)

    def row(self, i: int) -> RowResult:
        """The share of row `i` of the batch."""
        result = self._result
        end = int(self.ends[i])
        first = end - int(result.counts[i])
        return RowResult(
            token_ids=tuple(result.token_ids[first:end].tolist()),
            logprobs=_token_logprobs(result.logprobs, first, end),
            prompt_logprobs=result.logprobs.prompt.get(i) if result.logprobs else None,
            error=result.row_errors.get(i),
            embedding=result.embeddings.get(i),
        )


def _token_logprobs(logprobs: Logprobs | None, first: int, end: int) -> tuple[TokenLogprob, ...]:
    if logprobs is None:
        return ()
    return tuple(
        TokenLogprob(float(logprobs.chosen[t]), logprobs.top[t]) for t in range(first, end)
    )
