"""What a caller gets for a request: its text, ids and `meta_info`, as plain dicts.

Owns the shape of results, streamed and whole: a whole result is its stream, joined.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from phloem.scheduler import SamplingParams
from phloem.server.messages import Finish, TextNews

Result = dict[str, Any]
"""`{"text": str, "output_ids": list[int], "meta_info": dict}`."""


class ResultBuilder:
    """Turns one request's news into results: what is new each time, and everything at the end."""

    def __init__(
        self,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        *,
        triples: bool = False,
        text_of: Callable[[int], str] | None = None,
        prompt_ids_too: bool = False,
    ) -> None:
        """Logprobs are pairs, or with `triples` as SGLang has them, whose third is a token's text
        by `text_of`, or None. With `prompt_ids_too` the first result has the prompt's ids.
        """
        self._prompt_ids = prompt_ids
        self._params = params
        self._triples = triples
        self._text_of = text_of
        self._tell_prompt = prompt_ids_too
        self._parts: list[str] = []
        self._ids: list[int] = []
        self._logprobs: dict[str, list[Any]] = {}

    def delta(self, news: TextNews) -> Result:
        """What is new: text that is certain, ids and logprobs."""
        logprobs = self._new_logprobs(news)
        self._parts.append(news.text)
        self._ids += news.token_ids
        for name, values in logprobs.items():
            self._logprobs.setdefault(name, []).extend(values)
        result = {
            "text": news.text,
            "output_ids": news.token_ids,
            "meta_info": _meta_info(news) | logprobs,
        }
        if self._tell_prompt:
            self._tell_prompt = False
            result["prompt_token_ids"] = list(self._prompt_ids)
        return result

    def whole(self, last: TextNews) -> Result:
        """All of an ended request; `last` is its last news, taken in by `delta` before."""
        return {
            "text": "".join(self._parts),
            "output_ids": self._ids,
            "meta_info": _meta_info(last) | self._logprobs,
        }

    def _new_logprobs(self, news: TextNews) -> dict[str, list[Any]]:
        """Logprobs under the names that SGLang gives them."""
        new: dict[str, list[Any]] = {}
        if self._params.top_logprobs is not None:
            chosen = news.logprobs.chosen if news.logprobs else []
            new["output_token_logprobs"] = [
                self._entry(value, token)
                for value, token in zip(chosen, news.token_ids, strict=True)
            ]
            if self._params.top_logprobs:
                new["output_top_logprobs"] = [
                    self._entries(top) for top in (news.logprobs.top if news.logprobs else [])
                ]
        if self._params.prompt_logprobs_from is not None and not self._parts:
            new |= self._prompt_logprobs(news, self._params.prompt_logprobs_from)
        return new

    def _prompt_logprobs(self, news: TextNews, first: int) -> dict[str, list[Any]]:
        """Of the prompt's tokens from position `first` on; the very first token has none."""
        values: list[float | None] = [None] if first == 0 else []
        tops: list[list[list[Any]] | None] = [None] if first == 0 else []
        if news.prompt_logprobs is not None:
            values += news.prompt_logprobs.chosen
            tops += map(self._entries, news.prompt_logprobs.top)
        tokens = [int(t) for t in self._prompt_ids[first:]]
        new: dict[str, list[Any]] = {
            "input_token_logprobs": [
                self._entry(value, token) for value, token in zip(values, tokens, strict=False)
            ]
        }
        if self._params.top_logprobs:
            new["input_top_logprobs"] = tops
        return new

    def _entry(self, logprob: float | None, token: int) -> list[Any]:
        if not self._triples:
            return [logprob, token]
        return [logprob, token, None if self._text_of is None else self._text_of(token)]

    def _entries(self, top: Iterable[tuple[int, float]]) -> list[list[Any]]:
        return [self._entry(logprob, token) for token, logprob in top]


class ResultStream(Iterator[Result]):
    """What is new of one output, as it comes. Closing it, or dropping it, aborts the request."""

    def __init__(self, deltas: Iterator[Result], abort: Callable[[], None]) -> None:
        self._deltas = deltas
        self._abort = abort
        self._ended = False

    def __next__(self) -> Result:
        try:
            delta = next(self._deltas)
        except BaseException:
            # At the end nothing is left to abort; after an interrupt the rest is not wanted.
            self.close()
            raise
        self._ended = delta["meta_info"]["finish_reason"] is not None
        return delta

    def close(self) -> None:
        """End the request unless it has ended. May be called again."""
        if not self._ended:
            self._ended = True
            self._abort()

    def __del__(self) -> None:
        self.close()


def joined(builder: ResultBuilder, all_news: Iterable[TextNews]) -> Result:
    """The whole result of a request from all of its news."""
    last: TextNews | None = None
    for last in all_news:
        builder.delta(last)
    assert last is not None, "a request ends with news of its end"
    return builder.whole(last)


def _meta_info(news: TextNews) -> dict[str, Any]:
    meta: dict[str, Any] = {
        "id": news.rid,
        "finish_reason": None if news.finish is None else _finish_reason(news.finish),
        "prompt_tokens": news.prompt_tokens,
        "completion_tokens": news.completion_tokens,
        "cached_tokens": news.cached_tokens,
        "retractions": news.retractions,
    }
    if news.jump_forward_tokens:
        meta["jump_forward_tokens"] = news.jump_forward_tokens
    if news.cache_miss is not None:
        meta["cache_miss"] = {"reason": news.cache_miss.reason, "at": news.cache_miss.at}
    if news.timings is not None:
        meta["timings"] = news.timings
        if news.finish is not None:
            # SGLang's names.
            meta["e2e_latency"] = news.timings.get("total")
            meta["num_retractions"] = news.retractions
    return meta


def _finish_reason(finish: Finish) -> dict[str, Any]:
    fields = {
        "type": finish.type,
        "matched": finish.matched,
        "message": finish.message,
        "status_code": finish.status_code,
        "retry_after": finish.retry_after,
    }
    return {name: value for name, value in fields.items() if value is not None}
