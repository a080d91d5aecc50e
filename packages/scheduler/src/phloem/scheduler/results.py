"""A step's ragged result, cut into what each row produced."""

from __future__ import annotations

from dataclasses import dataclass

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


def split_rows(result: StepResult) -> list[RowResult]:
    """One entry a row, in batch order."""
    tokens = result.token_ids.tolist()
    rows = []
    first = 0
    for i, count in enumerate(result.counts.tolist()):
        end = first + count
        rows.append(
            RowResult(
                token_ids=tuple(tokens[first:end]),
                logprobs=_token_logprobs(result.logprobs, first, end),
                prompt_logprobs=result.logprobs.prompt.get(i) if result.logprobs else None,
                error=result.row_errors.get(i),
            )
        )
        first = end
    return rows


def _token_logprobs(logprobs: Logprobs | None, first: int, end: int) -> tuple[TokenLogprob, ...]:
    if logprobs is None:
        return ()
    return tuple(
        TokenLogprob(float(logprobs.chosen[t]), logprobs.top[t]) for t in range(first, end)
    )
