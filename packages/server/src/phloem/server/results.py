"""What a caller gets for a request: its text, ids and `meta_info`, as plain dicts.

Owns the shape of results, streamed and whole: a whole result is its stream, joined.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from phloem.scheduler import RequestOutput, SamplingParams, TopLogprobs
from phloem.server.output_text import OutputText
from phloem.server.tokenizer import Tokenizer

Result = dict[str, Any]
"""`{"text": str, "output_ids": list[int], "meta_info": dict}`."""


class ResultBuilder:
    """Turns one request's news into results: what is new each time, and everything at the end."""

    def __init__(
        self, tokenizer: Tokenizer, prompt_ids: Sequence[int], params: SamplingParams
    ) -> None:
        self._text = OutputText(tokenizer, params.stop)
        self._prompt_ids = prompt_ids
        self._params = params
        self._parts: list[str] = []
        self._ids: list[int] = []
        self._logprobs: dict[str, list[Any]] = {}

    def delta(self, output: RequestOutput) -> Result:
        """What is new: text that is certain, ids and logprobs of this news."""
        if output.finish_reason is None:
            text = self._text.push(output.token_ids)
        else:
            text = self._text.finish(output.token_ids, output.finish_reason.matched)
        logprobs = self._new_logprobs(output)
        self._parts.append(text)
        self._ids += output.token_ids
        for name, values in logprobs.items():
            self._logprobs.setdefault(name, []).extend(values)
        return {
            "text": text,
            "output_ids": list(output.token_ids),
            "meta_info": _meta_info(output) | logprobs,
        }

    def whole(self, last: RequestOutput) -> Result:
        """All of an ended request; `last` is its last news, taken in by `delta` before."""
        return {
            "text": "".join(self._parts),
            "output_ids": self._ids,
            "meta_info": _meta_info(last) | self._logprobs,
        }

    def _new_logprobs(self, output: RequestOutput) -> dict[str, list[Any]]:
        """Logprobs as `[logprob, token_id]` pairs, under the names that SGLang gives them."""
        new: dict[str, list[Any]] = {}
        if self._params.top_logprobs is not None:
            new["output_token_logprobs"] = [
                [entry.logprob, token]
                for entry, token in zip(output.logprobs, output.token_ids, strict=True)
            ]
            if self._params.top_logprobs:
                new["output_top_logprobs"] = [_pairs(entry.top) for entry in output.logprobs]
        if self._params.prompt_logprobs_from is not None and not self._parts:
            new |= self._prompt_logprobs(output, self._params.prompt_logprobs_from)
        return new

    def _prompt_logprobs(self, output: RequestOutput, first: int) -> dict[str, list[Any]]:
        """Of the prompt's tokens from position `first` on; the very first token has none."""
        values: list[float | None] = [None] if first == 0 else []
        tops: list[list[list[Any]] | None] = [None] if first == 0 else []
        for part in output.prompt_logprobs:
            values += part.logprobs.tolist()
            tops += map(_pairs, part.top)
        tokens = [int(t) for t in self._prompt_ids[first:]]
        new: dict[str, list[Any]] = {
            "input_token_logprobs": [list(pair) for pair in zip(values, tokens, strict=False)]
        }
        if self._params.top_logprobs:
            new["input_top_logprobs"] = tops
        return new


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


def joined(builder: ResultBuilder, outputs: Iterable[RequestOutput]) -> Result:
    """The whole result of a request from all of its news."""
    last: RequestOutput | None = None
    for last in outputs:
        builder.delta(last)
    assert last is not None, "a request ends with an output"
    return builder.whole(last)


def _pairs(top: TopLogprobs | None) -> list[list[Any]]:
    if top is None:
        return []
    return [[float(p), int(t)] for p, t in zip(top.logprobs, top.token_ids, strict=True)]


def _meta_info(output: RequestOutput) -> dict[str, Any]:
    return {
        "id": output.rid,
        "finish_reason": _finish_reason(output),
        "prompt_tokens": output.prompt_tokens,
        "completion_tokens": output.completion_tokens,
        "cached_tokens": output.cached_tokens,
        "retractions": output.retractions,
        "timings": _timings(output),
    }


def _finish_reason(output: RequestOutput) -> dict[str, Any] | None:
    reason = output.finish_reason
    if reason is None:
        return None
    fields = {
        "type": reason.type,
        "matched": reason.matched,
        "message": reason.message,
        "status_code": reason.status_code,
    }
    return {name: value for name, value in fields.items() if value is not None}


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
