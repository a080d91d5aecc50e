"""From checked requests to an answer on the wire: the sequences of one HTTP request, run together.

Owns their start (all or none), their end when the client leaves, and the two ways in which an
answer goes out, whole or as an event stream. What an answer looks like is its `Form`'s.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Protocol

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from phloem.server.concurrency import all_of
from phloem.server.frontend import Frontend, GenerationRequest, NewsStream, ServiceUnavailable
from phloem.server.http.errors import ApiError, as_api_error, raise_if_failed, refusing
from phloem.server.http.leaving import ClientLeft, until_left
from phloem.server.http.metrics import Meter, Metrics
from phloem.server.http.recent import Recent, Trace
from phloem.server.http.sse import EventStream
from phloem.server.http.truth import truth_headers
from phloem.server.messages import Logprobs, TextNews


class Form(Protocol):
    """How the news of one request's sequences become bytes; made for one request."""

    def chunk(self, index: int, news: TextNews) -> bytes:
        """Events for what is new of a sequence; possibly none.

        Raises:
            ApiError: the sequence failed.
        """
        ...

    def tail(self) -> bytes:
        """Events that come when all sequences have ended, up to the stream's last."""
        ...

    def failure(self, error: ApiError) -> bytes:
        """The events that end a stream which fails after it has begun."""
        ...

    def whole(self, outputs: Sequence[TextNews]) -> bytes:
        """The answer at once, from all news of each sequence, joined; as JSON.

        Raises:
            ApiError: a sequence failed.
        """
        ...


Spend = Callable[[int], object]
"""Is told of new tokens of an output, which somebody pays for."""

_STARTING = 150
"""What it takes to start a sequence, in tokens of its prompt."""
_MOST_WORK = 20_000
"""So much is started before streams have their turn."""


class Answer(Response):
    """A response that is made while its client waits; `work` is cancelled when the client leaves.

    So whatever `work` runs must end with it.
    """

    def __init__(self, work: Callable[[Scope, Send], Coroutine[Any, Any, None]]) -> None:
        self.background = None
        self._work = work

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, as an ASGI app."""
        with suppress(ClientLeft):
            await until_left(receive, self._work(scope, send))


class Generation:
    """Runs the sequences of one request and sends what comes of them."""

    def __init__(self, frontend: Frontend, metrics: Metrics) -> None:
        self._frontend = frontend
        self._metrics = metrics
        self.recent = Recent()

    async def send_whole(
        self,
        requests: Sequence[GenerationRequest],
        form: Form,
        prompt: str,
        spend: Spend,
        send: Send,
    ) -> None:
        """Answer when all sequences have ended; `prompt` is the field that has the prompt."""
        outputs = await self.outputs_of(requests, prompt, spend)
        await send_json(form.whole(outputs), outputs[0], send)

    async def outputs_of(
        self, requests: Sequence[GenerationRequest], prompt: str, spend: Spend
    ) -> list[TextNews]:
        """All news of each sequence, joined, when all have ended."""
        async with self._started(requests, prompt, spend) as sequences:
            outputs: list[TextNews] = [None] * len(sequences)  # type: ignore[list-item]

            async def collect(index: int, sequence: _Sequence) -> None:
                outputs[index] = join_news([news async for news in sequence])

            await all_of([collect(*item) for item in enumerate(sequences)])
        return outputs

    async def send_stream(
        self,
        requests: Sequence[GenerationRequest],
        form: Form,
        prompt: str,
        spend: Spend,
        events: EventStream,
    ) -> None:
        """Answer as it comes. Nothing is sent before there is something to tell, so that what
        fails before has a status of its own. What came while the client did not read goes out in
        one write.
        """
        told = False
        """Whether some sequence's first news have given the headers."""
        async with self._started(requests, prompt, spend) as sequences:

            async def pass_on(index: int, sequence: _Sequence) -> None:
                nonlocal told
                async for news in sequence:
                    if not told:
                        told = True
                        events.add_headers(truth_headers(news))
                    events.hold(form.chunk(index, news))
                    while (more := sequence.ready()) is not None:
                        events.hold(form.chunk(index, more))
                    if not events.flush_now():
                        await events.flush()

            try:
                await all_of([pass_on(*item) for item in enumerate(sequences)])
            except Exception as error:
                if not events.started:
                    raise
                await events.end(form.failure(as_api_error(error)))
                return
        await events.end(form.tail())

    @asynccontextmanager
    async def _started(
        self, requests: Sequence[GenerationRequest], prompt: str, spend: Spend
    ) -> AsyncIterator[list[_Sequence]]:
        """All of them or none; those that have not ended are aborted at the end."""
        sequences: list[_Sequence] = []
        work = 0
        try:
            for request in requests:
                work += _STARTING + len(request.prompt_ids)
                if work > _MOST_WORK:
                    work = 0
                    await asyncio.sleep(0)
                began = self.recent.now()
                with refusing(prompt=prompt):
                    stream = self._frontend.start(request)
                trace = self.recent.begin(request, began)
                sequences.append(_Sequence(stream, self._metrics.meter(request), trace, spend))
            yield sequences
        finally:
            for sequence in sequences:
                sequence.close()


class _Sequence:
    """The news of one sequence, measured as they pass."""

    __slots__ = ("_meter", "_spend", "_stream", "_trace")

    def __init__(self, stream: NewsStream, meter: Meter, trace: Trace, spend: Spend) -> None:
        self._stream = stream
        self._meter = meter
        self._trace = trace
        self._spend = spend

    def __aiter__(self) -> _Sequence:
        return self

    async def __anext__(self) -> TextNews:
        try:
            news = await self._stream.__anext__()
        except ServiceUnavailable:
            self._meter.end("error")
            self._trace.end("error")
            raise
        return self._noted(news)

    def ready(self) -> TextNews | None:
        news = self._stream.ready()
        return None if news is None else self._noted(news)

    def _noted(self, news: TextNews) -> TextNews:
        self._spend(len(news.token_ids))
        self._meter.take(news)
        self._trace.take(news)
        if news.finish is not None and news.finish.type == "refused":
            # All or none: what the others would come to is not waited for.
            raise_if_failed(news.finish)
        return news

    def close(self) -> None:
        self._stream.close(self._meter.late)
        self._meter.end("abort")
        self._trace.end("abort")


async def send_json(body: bytes, first: TextNews, send: Send) -> None:
    """Send a whole answer; its headers tell of its first sequence."""
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        *truth_headers(first),
    ]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def join_news(parts: Sequence[TextNews]) -> TextNews:
    """All news of a sequence as one; the counts are those of the last."""
    first, last = parts[0], parts[-1]
    return TextNews(
        rid=last.rid,
        text="".join([part.text for part in parts]),
        token_ids=[token for part in parts for token in part.token_ids],
        finish=last.finish,
        prompt_tokens=last.prompt_tokens,
        completion_tokens=last.completion_tokens,
        cached_tokens=last.cached_tokens,
        retractions=last.retractions,
        timings=last.timings,
        logprobs=_join_logprobs([part.logprobs for part in parts if part.logprobs]),
        prompt_logprobs=first.prompt_logprobs,
        jump_forward_tokens=last.jump_forward_tokens,
        embedding=last.embedding,
        cache_miss=last.cache_miss,
        marks=last.marks,
    )


def _join_logprobs(parts: Sequence[Logprobs]) -> Logprobs | None:
    if not parts:
        return None
    return Logprobs(
        [value for part in parts for value in part.chosen],
        [top for part in parts for top in part.top],
    )
