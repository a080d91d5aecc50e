"""The engine in one process: prompts in, results out, from any thread.

`Engine` wires the components (`phloem.server.wiring`), runs their loop in a thread of its own and
turns tokens into results. It leaves nothing behind when it is shut down.
"""

from __future__ import annotations

import asyncio
import queue
import weakref
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing, suppress
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, cast, overload

from phloem.grammar import Constraint
from phloem.grammar.constraint import Whitespace
from phloem.scheduler import PauseMode, Scheduler
from phloem.server.config import ServerArgs
from phloem.server.control import flush_cache
from phloem.server.driver import EngineDead, LoopDriver, Sink, raise_if_dead
from phloem.server.engine_compiler import EngineCompiler
from phloem.server.jobs import Job, Namespace, Params, TokenIds, make_jobs, only
from phloem.server.messages import CompiledConstraint, TextNews
from phloem.server.news import text_news, token_news
from phloem.server.output_text import OutputText
from phloem.server.results import Result, ResultBuilder, ResultStream, joined
from phloem.server.tokenizer import Tokenizer
from phloem.server.wiring import build

if TYPE_CHECKING:
    from phloem.model_runner.sources import Progress
    from phloem.scheduler import RequestOutput
    from phloem.server.chat_template import Message


class Engine:
    """An LLM inference engine.

    Options are the fields of `phloem.server.config.ServerArgs`, as keyword arguments. Use it as a
    context manager, or call `shutdown`. Any thread may call any method; several engines may live in
    one process.

    `sampling_params` are those of `phloem.scheduler.SamplingParams`, as a dict, and `n`: that many
    outputs for each prompt (with a `seed`, output i has `seed + i`). An output keeps to a
    constraint that is given as such, or there under one of the names of
    `phloem.server.constraints.FIELDS`.

    Results are dicts: `text`, `output_ids`, and `meta_info` with `id`, `finish_reason` (`type` is
    stop, length, abort or error), `prompt_tokens`, `completion_tokens`, `cached_tokens` (prompt
    tokens that were found in the cache), `retractions`, `timings` (seconds: `queue`, `ttft`,
    `decode`, `total`), and where asked for `output_token_logprobs`, `output_top_logprobs`,
    `input_token_logprobs`, `input_top_logprobs`, of `[logprob, token_id]` pairs; with a constraint
    `jump_forward_tokens`, those that it forced and that the model was not asked for, if there were
    any.
    """

    def __init__(self, *, progress: Progress | None = None, **options: Any) -> None:
        """Load the model and start the loop.

        Args:
            progress: told of downloads and conversions, as (what, bytes done, bytes in all).
            **options: see `ServerArgs`.

        Raises:
            TypeError: for an unknown option.
            ValueError: for options that do not fit each other, the model or the machine.
        """
        self.args = ServerArgs(**options)
        parts = build(self.args, progress)
        self._tokenizer = parts.tokenizer
        self._model_name = parts.model_name
        self._max_total_tokens = parts.scheduler.max_total_tokens
        self._compiler = EngineCompiler(self.args, parts.grammars)
        self._driver = LoopDriver(parts.loop)
        # Runs at `shutdown`, when the engine is dropped, and at the latest when Python exits: a
        # thread that is still in torch then would abort the process.
        self._finalizer = weakref.finalize(
            self, _end, self._driver, self._compiler.close, parts.close
        )

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.shutdown()

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self._tokenizer

    @property
    def model_name(self) -> str:
        """What the model is called."""
        return self._model_name

    @property
    def max_total_tokens(self) -> int:
        """Longest prompt and output together that one request may have."""
        return self._max_total_tokens

    @overload
    def generate(
        self,
        prompts: str | None = None,
        sampling_params: Params | Sequence[Params] = None,
        *,
        input_ids: Sequence[int] | Sequence[TokenIds] | None = None,
        namespace: Namespace = (),
        priority: int = 0,
        tenant: str | None = None,
        constraint: Constraint | None = None,
        stream: Literal[True],
    ) -> Iterator[Result]: ...

    @overload
    def generate(
        self,
        prompts: str | Sequence[str] | None = None,
        sampling_params: Params | Sequence[Params] = None,
        *,
        input_ids: Sequence[int] | Sequence[TokenIds] | None = None,
        namespace: Namespace = (),
        priority: int = 0,
        tenant: str | None = None,
        constraint: Constraint | None = None,
        stream: bool = False,
    ) -> Any: ...

    def generate(
        self,
        prompts: str | Sequence[str] | None = None,
        sampling_params: Params | Sequence[Params] = None,
        *,
        input_ids: Sequence[int] | Sequence[TokenIds] | None = None,
        namespace: Namespace = (),
        priority: int = 0,
        tenant: str | None = None,
        constraint: Constraint | None = None,
        stream: bool = False,
    ) -> Any:
        """Continue a prompt, or several at once.

        Args:
            prompts: a text, or a list of texts.
            sampling_params: for all prompts, or a list with one entry each.
            input_ids: token ids instead of texts: one list, or a list of lists.
            namespace: only requests of an equal namespace share cached prefixes.
            priority: how urgent it is, with `enable_priority_scheduling`; the higher, the sooner.
            tenant: for whom it is, with `enable_tenant_fairness`; None: the namespace tells.
            constraint: what all outputs keep to; compiled first, which the call waits for.
            stream: for one prompt and one output: an iterator of what is new, instead of the whole;
                closing it aborts the request.

        Returns:
            A result for one prompt; a list of them for a list of prompts, and for `n` above 1 (the
            n outputs of a prompt side by side).

        Raises:
            ValueError: for bad input, a constraint that cannot be used too; nothing is run then.
            QueueFullError: too many requests wait; likewise.
            EngineDead: the engine has ended.
        """
        jobs, single = self._jobs(
            prompts, sampling_params, input_ids, namespace, priority, tenant, constraint
        )
        if stream:
            return self._stream(only(jobs))
        results = self._collect(jobs)
        return results[0] if single else results

    batch_generate = generate

    def chat(
        self,
        messages: Sequence[Message],
        sampling_params: Params = None,
        *,
        namespace: Namespace = (),
        priority: int = 0,
        tenant: str | None = None,
        constraint: Constraint | None = None,
        stream: bool = False,
    ) -> Any:
        """Answer a conversation, rendered by the model's chat template; as `generate`."""
        return self.generate(
            None,
            sampling_params,
            input_ids=self.tokenizer.encode_chat(messages),
            namespace=namespace,
            priority=priority,
            tenant=tenant,
            constraint=constraint,
            stream=stream,
        )

    async def async_generate(
        self,
        prompts: str | Sequence[str] | None = None,
        sampling_params: Params | Sequence[Params] = None,
        *,
        input_ids: Sequence[int] | Sequence[TokenIds] | None = None,
        namespace: Namespace = (),
        priority: int = 0,
        tenant: str | None = None,
        constraint: Constraint | None = None,
    ) -> Any:
        """As `generate`, without blocking the asyncio loop; cancelling it aborts its requests."""
        jobs, single = self._jobs(
            prompts, sampling_params, input_ids, namespace, priority, tenant, constraint
        )
        results: list[Result] = []
        builder: ResultBuilder | None = None
        async with aclosing(self._news(jobs)) as news:
            async for job, latest in news:
                builder = builder or ResultBuilder(job.prompt_ids, job.params)
                builder.delta(latest)
                if latest.finish is not None:
                    results.append(builder.whole(latest))
                    builder = None
        return results[0] if single else results

    async def async_stream(
        self,
        prompt: str | None = None,
        sampling_params: Params = None,
        *,
        input_ids: Sequence[int] | None = None,
        namespace: Namespace = (),
        priority: int = 0,
        tenant: str | None = None,
        constraint: Constraint | None = None,
    ) -> AsyncGenerator[Result, None]:
        """What is new of one output, as it comes; closing the iterator aborts the request."""
        jobs, _ = self._jobs(
            prompt, sampling_params, input_ids, namespace, priority, tenant, constraint
        )
        job = only(jobs)
        builder = ResultBuilder(job.prompt_ids, job.params)
        async with aclosing(self._news([job])) as news:
            async for _, latest in news:
                yield builder.delta(latest)

    def abort(self, rid: str) -> bool:
        """End a request by its `meta_info["id"]`; False if it has ended or never was."""
        return self._driver.call(lambda scheduler: scheduler.abort(rid))

    def flush_cache(self) -> int:
        """Forget all cached prefixes; returns the tokens freed.

        Raises:
            ValueError: while requests are running.
        """
        return self._driver.call(flush_cache)

    def pause(self, mode: str = "abort") -> None:
        """Hold all requests still until `resume`; `mode` says what becomes of those that are there:
        "abort", "retract" or "in_place", see `phloem.scheduler.PauseMode`.

        Raises:
            ValueError: there is no such mode.
        """
        self._driver.call(lambda scheduler: scheduler.pause(PauseMode.of(mode)))

    def resume(self) -> None:
        """Let them go on."""
        self._driver.call(Scheduler.resume)

    def set_weight_version(self, name: str) -> None:
        """Say that the model has other weights now: what was cached before is used no more."""
        self._driver.call(lambda scheduler: scheduler.set_weight_version(name))

    def shutdown(self) -> None:
        """Abort what runs, end the threads and give the memory back. May be called again."""
        self._finalizer()

    # Jobs in, news out.

    def _jobs(
        self,
        prompts: str | Sequence[str] | None,
        sampling_params: Params | Sequence[Params],
        input_ids: Sequence[int] | Sequence[TokenIds] | None,
        namespace: Namespace,
        priority: int,
        tenant: str | None,
        constraint: Constraint | None,
    ) -> tuple[list[Job], bool]:
        return make_jobs(
            self.tokenizer,
            prompts,
            sampling_params,
            input_ids,
            namespace,
            priority=priority,
            tenant=tenant,
            whitespace=cast(Whitespace, self.args.grammar_whitespace),
            constraint=constraint,
        )

    def _as_text(self, job: Job, outputs: Iterable[RequestOutput]) -> Iterator[TextNews]:
        text = OutputText(self.tokenizer, job.params.stop)
        return (text_news(token_news(output), text) for output in outputs)

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
                )
                added.append(job.rid)
        except BaseException:
            for rid in added:
                scheduler.abort(rid)
            raise
        for job, sink in zip(jobs, sinks, strict=True):
            self._driver.listen(job.rid, sink)

    def _start(self, jobs: Sequence[Job]) -> list[queue.SimpleQueue[Any]]:
        news: list[queue.SimpleQueue[Any]] = [queue.SimpleQueue() for _ in jobs]
        constraints = self._compiler.compile_all(job.constraint for job in jobs)
        self._driver.call(
            lambda scheduler: self._add(scheduler, jobs, constraints, [q.put for q in news])
        )
        return news

    def _collect(self, jobs: Sequence[Job]) -> list[Result]:
        news = self._start(jobs)
        try:
            return [
                joined(ResultBuilder(job.prompt_ids, job.params), self._as_text(job, _until_end(q)))
                for job, q in zip(jobs, news, strict=True)
            ]
        except BaseException:
            self._driver.abort([job.rid for job in jobs])
            raise

    def _stream(self, job: Job) -> ResultStream:
        (news,) = self._start([job])
        deltas = map(
            ResultBuilder(job.prompt_ids, job.params).delta, self._as_text(job, _until_end(news))
        )
        return ResultStream(deltas, lambda: self._driver.abort([job.rid]))

    async def _news(self, jobs: Sequence[Job]) -> AsyncGenerator[tuple[Job, TextNews], None]:
        """Start jobs and yield their news, job by job; aborts what is left if it is not read on."""
        loop = asyncio.get_running_loop()
        news: list[asyncio.Queue[Any]] = [asyncio.Queue() for _ in jobs]
        sinks = [partial(_call_soon, loop, q) for q in news]
        asked = [job.constraint for job in jobs]
        constraints: list[CompiledConstraint | None] = [None] * len(jobs)
        if any(asked):
            constraints = await asyncio.to_thread(self._compiler.compile_all, asked)
        try:
            # Handed in before anything is awaited, so that the abort below cannot overtake it.
            added = self._driver.submit(
                lambda scheduler: self._add(scheduler, jobs, constraints, sinks)
            )
            await asyncio.wrap_future(added)
            for job, q in zip(jobs, news, strict=True):
                text = OutputText(self.tokenizer, job.params.stop)
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


def _end(driver: LoopDriver, *close: Callable[[], None]) -> None:
    """End an engine's threads; a function of its own, so that it does not keep the engine."""
    driver.stop()
    for part in close:
        part()


__all__ = ["Engine", "EngineDead"]
