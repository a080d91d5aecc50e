"""The sequences of an engine's calls: compiled, queued together and read to their end.

Owns that all of a call's jobs start or none, and that none outlives its reader, be it a thread or a
task of asyncio. What a caller may ask for is `jobs`' concern, the engine's loop `driver`'s.
"""

from __future__ import annotations

import asyncio
import queue
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from phloem.scheduler import Scheduler
from phloem.server.driver import LoopDriver, Sink, raise_if_dead
from phloem.server.engine_compiler import EngineCompiler
from phloem.server.jobs import Job
from phloem.server.messages import CompiledConstraint, TextNews
from phloem.server.news import text_news, token_news
from phloem.server.output_text import OutputText
from phloem.server.results import Result, ResultBuilder, ResultStream, joined
from phloem.server.tokenizer import Tokenizer

if TYPE_CHECKING:
    from phloem.scheduler import RequestOutput


class JobRunner:
    """Runs jobs; any thread may use it."""

    def __init__(self, tokenizer: Tokenizer, driver: LoopDriver, compiler: EngineCompiler) -> None:
        self._tokenizer = tokenizer
        self._driver = driver
        self._compiler = compiler

    def collect(self, jobs: Sequence[Job]) -> list[Result]:
        """The whole results, in order; aborts what is left if the wait ends early."""
        news = self._start(jobs)
        try:
            return [
                joined(ResultBuilder(job.prompt_ids, job.params), self._as_text(job, _until_end(q)))
                for job, q in zip(jobs, news, strict=True)
            ]
        except BaseException:
            self._driver.abort([job.rid for job in jobs])
            raise

    def last_news(self, jobs: Sequence[Job]) -> list[TextNews]:
        """The news with which each job ends, in order; aborts what is left if it ends early."""
        queues = self._start(jobs)
        try:
            return [
                list(self._as_text(job, _until_end(q)))[-1]
                for job, q in zip(jobs, queues, strict=True)
            ]
        except BaseException:
            self._driver.abort([job.rid for job in jobs])
            raise

    def stream(self, job: Job) -> ResultStream:
        """What is new of one job, as it comes."""
        (news,) = self._start([job])
        deltas = map(
            ResultBuilder(job.prompt_ids, job.params).delta, self._as_text(job, _until_end(news))
        )
        return ResultStream(deltas, lambda: self._driver.abort([job.rid]))

    async def news(self, jobs: Sequence[Job]) -> AsyncGenerator[tuple[Job, TextNews], None]:
        """Start jobs and yield their news, job by job; aborts what is left if it is not read on."""
        loop = asyncio.get_running_loop()
        news: list[asyncio.Queue[Any]] = [asyncio.Queue() for _ in jobs]
        sinks = [partial(_call_soon, loop, q) for q in news]
        constraints = await self._compiler.compile_all_async([job.constraint for job in jobs])
        try:
            # Handed in before anything is awaited, so that the abort below cannot overtake it.
            added = self._driver.submit(
                lambda scheduler: self._add(scheduler, jobs, constraints, sinks)
            )
            await asyncio.wrap_future(added)
            for job, q in zip(jobs, news, strict=True):
                text = OutputText(self._tokenizer, job.params.stop)
                ended = False
                while not ended:
                    if asyncio.get_running_loop() is not loop:
                        # A queue that nobody had to wait for yet would wait here for ever.
                        raise RuntimeError("a stream is read in the asyncio loop where it began")
                    output = raise_if_dead(await q.get())
                    ended = output.finish_reason is not None
                    yield job, text_news(token_news(output), text)
        except BaseException:
            self._driver.abort([job.rid for job in jobs])
            raise

    def _start(self, jobs: Sequence[Job]) -> list[queue.SimpleQueue[Any]]:
        news: list[queue.SimpleQueue[Any]] = [queue.SimpleQueue() for _ in jobs]
        constraints = self._compiler.compile_all([job.constraint for job in jobs])
        self._driver.call(
            lambda scheduler: self._add(scheduler, jobs, constraints, [q.put for q in news])
        )
        return news

    def _add(
        self,
        scheduler: Scheduler,
        jobs: Sequence[Job],
        constraints: Sequence[CompiledConstraint | None],
        sinks: Sequence[Sink],
    ) -> None:
        """Queue all jobs or none. In the loop's thread."""
        added = []
        try:
            for job, constraint in zip(jobs, constraints, strict=True):
                guidance = self._compiler.guidance(constraint)
                scheduler.add(
                    job.rid,
                    job.prompt_ids,
                    job.params,
                    job.namespace,
                    priority=job.priority,
                    tenant=job.tenant,
                    matcher=guidance.matcher,
                    steer=guidance.steer,
                    jump_forward=guidance.jump_forward,
                    pooling=job.pooling,
                )
                added.append(job.rid)
        except BaseException:
            for rid in added:
                scheduler.abort(rid)
            raise
        for job, sink in zip(jobs, sinks, strict=True):
            self._driver.listen(job.rid, sink)

    def _as_text(self, job: Job, outputs: Iterable[RequestOutput]) -> Iterator[TextNews]:
        text = OutputText(self._tokenizer, job.params.stop)
        return (text_news(token_news(output), text) for output in outputs)


def _until_end(news: queue.SimpleQueue[Any]) -> Iterator[RequestOutput]:
    while True:
        output = raise_if_dead(news.get())
        yield output
        if output.finish_reason is not None:
            return


def _call_soon(loop: asyncio.AbstractEventLoop, q: asyncio.Queue[Any], output: Any) -> None:
    # Raised when the caller's loop is closed; then nobody listens any more.
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(q.put_nowait, output)
