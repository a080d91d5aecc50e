"""From the scheduler's outputs to the messages about them, on their way to becoming text.

The engine in process and the server's scheduler and detokenizer processes take the same way:
`RequestOutput` to `TokenNews` to `TextNews`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from phloem.server.messages import (
    CacheMiss,
    Finish,
    Logprobs,
    TextNews,
    TextOptions,
    TokenNews,
)
from phloem.server.output_text import OutputText

if TYPE_CHECKING:
    # The detokenizer process needs neither numpy nor the scheduler.
    from phloem.scheduler import PromptLogprobs, RequestOutput, TokenLogprob, TopLogprobs


def token_news(output: RequestOutput, options: TextOptions | None = None) -> TokenNews:
    """The message about an output; with `options` where it is a request's first."""
    reason = output.finish_reason
    # In the order of the fields: by their names it would take half as long again, for each token.
    news = TokenNews(
        output.rid,
        list(output.token_ids),
        None
        if reason is None
        else Finish(
            reason.type, reason.matched, reason.message, reason.status_code, reason.retry_after
        ),
        output.prompt_tokens,
        output.completion_tokens,
        output.cached_tokens,
        output.retractions,
        _timings(output) if reason is not None or options is not None else None,
        _of_tokens(output.logprobs) if output.logprobs else None,
        _of_prompt(output.prompt_logprobs) if output.prompt_logprobs else None,
        options,
        output.jump_forward_tokens,
        output.brought,
    )
    if output.embedding is not None:
        news.embedding = output.embedding.astype("<f4").tobytes()
    if output.cache_miss is not None:
        news.cache_miss = CacheMiss(output.cache_miss.reason, output.cache_miss.at)
    if output.marks:
        came = output.timings.arrived
        news.marks = [(mark.kind, mark.at - came, mark.tokens) for mark in output.marks]
    return news


def text_news(news: TokenNews, text: OutputText) -> TextNews:
    """The same news with the text that has become certain; `text` is the request's own."""
    finish = news.finish
    return TextNews(
        news.rid,
        text.push(news.token_ids)
        if finish is None
        else text.finish(news.token_ids, finish.matched),
        news.token_ids,
        finish,
        news.prompt_tokens,
        news.completion_tokens,
        news.cached_tokens,
        news.retractions,
        news.timings,
        news.logprobs,
        news.prompt_logprobs,
        news.jump_forward_tokens,
        news.brought,
        news.embedding,
        news.cache_miss,
        news.marks,
    )


def _of_tokens(entries: Sequence[TokenLogprob]) -> Logprobs:
    tops = [entry.top for entry in entries]
    return Logprobs(
        [_finite(entry.logprob) for entry in entries],
        [_pairs(top) for top in tops if top is not None],
    )


def _of_prompt(parts: Iterable[PromptLogprobs]) -> Logprobs:
    chosen: list[float | None] = []
    tops: list[list[tuple[int, float]]] = []
    for part in parts:
        chosen += map(_finite, part.logprobs.tolist())
        tops += map(_pairs, part.top)
    return Logprobs(chosen, tops)


def _pairs(top: TopLogprobs) -> list[tuple[int, float]]:
    return list(zip(top.token_ids.tolist(), map(_finite, top.logprobs.tolist()), strict=True))


LOWEST = -9999.0
"""Stands for minus infinity, which JSON does not have."""


def _finite(logprob: float) -> float:
    return logprob if math.isfinite(logprob) else LOWEST


def _timings(output: RequestOutput) -> dict[str, float]:
    """Seconds: in the queue, to the first token, from there to the end, and altogether."""
    t = output.timings
    spans = {
        "queue": (t.arrived, t.admitted),
        "ttft": (t.arrived, t.first_token),
        "decode": (t.first_token, t.finished),
        "total": (t.arrived, t.finished),
    }
    return {
        name: end - start
        for name, (start, end) in spans.items()
        if start is not None and end is not None
    }
