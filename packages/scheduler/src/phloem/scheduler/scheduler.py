"""The scheduler: takes requests, decides what each step computes, and takes the results in.

It owns the requests' states and nothing else: slots belong to the `CacheManager`, tokens are made
by a `Runner`, and an event loop (`phloem.scheduler.loop`) carries batches from here to there and
back.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy.typing as npt

from phloem.mem_pool import CacheManager
from phloem.scheduler.batch import BatchRow, ScheduleBatch
from phloem.scheduler.budget import NewTokenRatio, max_total_tokens
from phloem.scheduler.config import SchedulerConfig
from phloem.scheduler.decode import DecodePlanner
from phloem.scheduler.policies import create_policy
from phloem.scheduler.ports import ModelWorkerBatch, StepResult, StopChecker
from phloem.scheduler.prefill import PrefillPlanner
from phloem.scheduler.queue import WaitingQueue
from phloem.scheduler.randomness import draw_seed
from phloem.scheduler.request import (
    FinishReason,
    Request,
    RequestOutput,
    Status,
    TokenLogprob,
)
from phloem.scheduler.results import RowResult, split_rows
from phloem.scheduler.sampling import SamplingParams
from phloem.scheduler.stops import finish_after_token
from phloem.scheduler.validation import checked_new_tokens, checked_prompt


class Scheduler:
    """Continuous batching over a cache manager. One thread uses it.

    `schedule()` gives the next batch or None; `process(batch, result)` takes its result in. Several
    batches may be in flight, processed in the order in which they were scheduled. `take_outputs()`
    hands over the news of all requests since it was last called.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        manager: CacheManager,
        stop_checker: StopChecker | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.config = config
        self.manager = manager
        self._stop_checker = stop_checker
        self._clock = clock
        self._waiting = WaitingQueue()
        # Everybody who holds a lease, in order of admission: a dict, since batch order must be
        # deterministic.
        self._active: dict[str, Request] = {}
        self._outputs: list[RequestOutput] = []
        self._seeds_drawn = 0
        self._ratio = NewTokenRatio(config.schedule_conservativeness)
        self._prefill = PrefillPlanner(config, manager, create_policy(config), self._ratio, clock)
        self._decode = DecodePlanner(manager, self._ratio, self._retract, self._end)
        chunk, page = config.chunked_prefill_size, manager.page_size
        if chunk is not None and chunk % page:
            raise ValueError(
                f"page_size {page} does not divide chunked_prefill_size {chunk}: "
                "use a multiple of it"
            )

    # Requests come in.

    @property
    def max_total_tokens(self) -> int:
        """Longest prompt and output together that this scheduler serves."""
        return max_total_tokens(
            self.config.context_len, self.manager.capacity, self.manager.page_size
        )

    def add(
        self,
        rid: str,
        prompt_ids: npt.ArrayLike,
        params: SamplingParams,
        namespace: tuple[object, ...] = (),
    ) -> Request:
        """Queue a request.

        Raises:
            ValueError: if the id is in use, the prompt is empty or has ids outside the vocabulary,
                the namespace is none that the cache takes, or if it could never fit; nothing is
                queued then.
        """
        if self.has(rid):
            raise ValueError(f"request id {rid!r} is in use: give each request its own")
        prompt = checked_prompt(prompt_ids, self.config.vocab_size)
        params.check_vocabulary(self.config.vocab_size)
        self._check_namespace(namespace)
        max_new_tokens = checked_new_tokens(
            len(prompt),
            params,
            self.config.context_len,
            self.manager.capacity,
            self.max_total_tokens,
        )
        if params.stop and self._stop_checker is None:
            raise ValueError(
                "stop strings were given, but this scheduler has no StopChecker to turn tokens "
                "into text: pass one at construction"
            )
        matcher = (
            self._stop_checker.matcher(params.stop) if params.stop and self._stop_checker else None
        )
        request = Request(
            rid=rid,
            prompt_ids=prompt,
            params=params,
            max_new_tokens=max_new_tokens,
            seed=params.seed if params.seed is not None else self._draw_seed(),
            arrived=self._clock(),
            namespace=namespace,
            stop_matcher=matcher,
        )
        if not self._active and not len(self._waiting):
            # Here and not in `schedule`, which nobody calls while there is nothing to do.
            self._ratio.reset()
        self._waiting.add(request)
        return request

    def has(self, rid: str) -> bool:
        """Whether a request of this id waits or holds memory."""
        return rid in self._active or self._waiting.get(rid) is not None

    def abort(self, rid: str) -> bool:
        """End a request wherever it is; False if there is none of this id that has not ended."""
        request = self._waiting.remove(rid) or self._active.get(rid)
        if request is None or request.status is Status.FINISHED:
            return False
        self._end(request, FinishReason("abort", message="the request was aborted"))
        return True

    # Batches go out and come back.

    @property
    def num_waiting(self) -> int:
        """Requests not admitted yet, or retracted."""
        return len(self._waiting)

    @property
    def num_active(self) -> int:
        """Requests that hold memory."""
        return len(self._active)

    @property
    def idle(self) -> bool:
        """Whether nothing waits, nothing holds memory, and no news is left to take."""
        return not (self._active or len(self._waiting) or self._outputs)

    def schedule(self) -> ScheduleBatch | None:
        """The next step, prefill before decode; None if nothing can run now.

        None while steps are in flight may also mean that one of them has to be processed first.
        """
        # From before the admissions: what is prefilled in this step does not decode in it.
        active = list(self._active.values())
        mixed = self.config.enable_mixed_chunk
        decoding = sum(r.status is Status.RUNNING for r in active) if mixed else 0
        rows = self._prefill.plan(self._waiting, self._active, decoding)
        if not rows or mixed:
            decode = self._decode.plan(active, may_retract=not rows)
            if decode:
                self._ratio.step()
                rows = rows + decode
        return ScheduleBatch(rows) if rows else None

    def launch(self, batch: ScheduleBatch) -> ModelWorkerBatch:
        """The batch's flat form for the runner; from here on the step counts as in flight."""
        worker_batch = batch.to_worker_batch(self.manager.rows.table, self.config.eos_token_ids)
        for row in batch:
            row.request.in_flight += 1
            row.request.pending += row.samples
        return worker_batch

    def process(self, batch: ScheduleBatch, result: StepResult | Exception) -> None:
        """Take in what a step produced, or the exception that it ended with (its requests end
        then).
        """
        for row in batch:
            row.request.in_flight -= 1
            row.request.pending -= row.samples
        results = None if isinstance(result, Exception) else split_rows(result)
        for i, row in enumerate(batch):
            if row.request.status is not Status.FINISHED:
                error = f"the model step failed: {result}" if results is None else results[i].error
                if results is None or error is not None:
                    self._fail(row.request, str(error))
                else:
                    self._take_in(row, results[i])
            self._release_if_over(row.request)

    def take_outputs(self) -> list[RequestOutput]:
        """The news since the last call, in order."""
        outputs, self._outputs = self._outputs, []
        return outputs

    # Inside.

    def _take_in(self, row: BatchRow, result: RowResult) -> None:
        request = row.request
        self.manager.commit(row.lease, row.query_len)
        if result.prompt_logprobs is not None:
            request.add_prompt_logprobs(result.prompt_logprobs)
        taken, reason = self._append(request, result.token_ids)
        if row.end == request.prefill_end and request.max_new_tokens == 0:
            reason = FinishReason("length")
        wanted = request.params.top_logprobs is not None
        logprobs = result.logprobs[:taken] if wanted else ()
        if reason is not None:
            self._end(request, reason, result.token_ids[:taken], logprobs)
            return
        if row.end <= request.prefill_end:
            self.manager.checkpoint(row.lease, request.tokens)
        if taken:
            self._outputs.append(request.report(result.token_ids[:taken], logprobs))

    def _append(
        self, request: Request, token_ids: tuple[int, ...]
    ) -> tuple[int, FinishReason | None]:
        """Add tokens up to the one that ends the request: how many, and why it ended if it did."""
        for taken, token in enumerate(token_ids, start=1):
            request.append(token)
            if request.first_token is None:
                request.first_token = self._clock()
            reason = finish_after_token(request, token, self.config.eos_token_ids)
            if reason is not None:
                return taken, reason
        return len(token_ids), None

    def _end(
        self,
        request: Request,
        reason: FinishReason,
        token_ids: tuple[int, ...] = (),
        logprobs: tuple[TokenLogprob, ...] = (),
    ) -> None:
        request.status = Status.FINISHED
        request.finish_reason = reason
        request.finished = self._clock()
        self._outputs.append(request.report(token_ids, logprobs))
        self._release_if_over(request)

    def _fail(self, request: Request, message: str) -> None:
        # What a failed step left in the KV cache is not to be trusted.
        request.publish = False
        self._end(request, FinishReason("error", message=message, status_code=500))

    def _release_if_over(self, request: Request) -> None:
        """Close the lease of an ended request, unless a step in flight still uses its slots."""
        if request.status is Status.FINISHED and not request.in_flight:
            self._close(request)

    def _close(self, request: Request) -> None:
        lease, request.lease = request.lease, None
        if lease is None:
            return
        del self._active[request.rid]
        self.manager.close(lease, request.tokens if request.publish else None)

    def _retract(self, request: Request) -> None:
        """Take a request's memory; it goes to the front of the queue and keeps its output."""
        self._close(request)
        request.status = Status.WAITING
        request.scheduled = 0
        request.retractions += 1
        self._waiting.add_first(request)

    def _check_namespace(self, namespace: tuple[object, ...]) -> None:
        """Let the cache refuse a namespace now: in the middle of a step it would end them all."""
        try:
            self.manager.peek((), namespace)
        except (TypeError, ValueError) as error:
            raise ValueError(f"namespace {namespace!r} cannot be used: {error}") from error

    def _draw_seed(self) -> int:
        self._seeds_drawn += 1
        return draw_seed(self.config.default_seed, self._seeds_drawn)
