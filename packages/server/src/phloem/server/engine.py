"""The engine in one process: prompts in, results out, from any thread.

`Engine` wires the components (`phloem.server.wiring`) and runs their loop in a thread of its own;
its calls become jobs, which `phloem.server.engine_jobs` runs. It leaves nothing behind when it is
shut down.
"""

from __future__ import annotations

import weakref
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, cast, overload

import numpy as np

from phloem.grammar import Constraint
from phloem.grammar.constraint import Whitespace
from phloem.scheduler import PauseMode, PoolingMode, Scheduler
from phloem.server.compiling import compile_service
from phloem.server.config import ServerArgs
from phloem.server.control import flush_cache
from phloem.server.driver import EngineDead, LoopDriver
from phloem.server.embeddings import Vector, check_dimensions, embedding_of
from phloem.server.engine_compiler import EngineCompiler
from phloem.server.engine_jobs import JobRunner
from phloem.server.jobs import (
    Job,
    Namespace,
    Params,
    TokenIds,
    make_jobs,
    make_pooling_jobs,
    only,
)
from phloem.server.results import Result, ResultBuilder
from phloem.server.tokenizer import Tokenizer
from phloem.server.wiring import build

if TYPE_CHECKING:
    from phloem.model_runner.sources import Progress
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
        self._embedding_size = parts.embedding_size
        compiler = EngineCompiler(parts.grammars, partial(compile_service, self.args))
        self._driver = LoopDriver(parts.loop)
        self._runner = JobRunner(self._tokenizer, self._driver, compiler)
        # Runs at `shutdown`, when the engine is dropped, and at the latest when Python exits: a
        # thread that is still in torch then would abort the process.
        self._finalizer = weakref.finalize(self, _end, self._driver, compiler.close, parts.close)

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
            return self._runner.stream(only(jobs))
        results = self._runner.collect(jobs)
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

    def embed(
        self,
        prompts: str | Sequence[str] | None = None,
        pooling: PoolingMode = "mean",
        *,
        input_ids: Sequence[int] | Sequence[TokenIds] | None = None,
        normalize: bool = True,
        dimensions: int | None = None,
        namespace: Namespace = (),
        priority: int = 0,
        tenant: str | None = None,
    ) -> Vector:
        """One vector for a prompt, or for each of several: its hidden states, pooled.

        Args:
            prompts: a text, or a list of texts.
            pooling: "mean" of all tokens' states after the final norm, or "last", the last token's.
            input_ids: token ids instead of texts: one list, or a list of lists.
            normalize: to Euclidean length 1.
            dimensions: keep so many elements, the first ones; before they are normalised.
            namespace: as for `generate`.
            priority: as for `generate`.
            tenant: as for `generate`.

        Returns:
            float32 `[hidden]` (or `[dimensions]`) for one prompt, `[n, hidden]` for a list.

        Raises:
            ValueError: for bad input, and more `dimensions` than there are; nothing is run then.
            EmbeddingError: a prompt was aborted or failed.
            QueueFullError: too many requests wait; nothing is run.
            EngineDead: the engine has ended.
        """
        check_dimensions(dimensions, self._embedding_size)
        jobs, single = make_pooling_jobs(
            self.tokenizer,
            prompts,
            input_ids,
            pooling,
            namespace,
            priority=priority,
            tenant=tenant,
        )
        if not jobs:
            raise ValueError("there are no prompts: give at least one")
        news = self._runner.last_news(jobs)
        vectors = np.stack([embedding_of(each, dimensions, normalize) for each in news])
        return vectors[0] if single else vectors

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
        async with aclosing(self._runner.news(jobs)) as news:
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
        async with aclosing(self._runner.news([job])) as news:
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


def _end(driver: LoopDriver, *close: Callable[[], None]) -> None:
    """End an engine's threads; a function of its own, so that it does not keep the engine."""
    driver.stop()
    for part in close:
        part()


__all__ = ["Engine", "EngineDead"]
