"""The scheduler: takes requests, decides what each step computes, and takes the results in.

It owns the requests' states and nothing else: slots belong to the `CacheManager`, tokens are made
by a `Runner`, and an event loop (`phloem.scheduler.loop`) carries batches from here to there and
back.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence

import numpy as np
import numpy.typing as npt

from phloem.mem_pool import CacheManager, Retention
from phloem.radix_cache.simulated import SimulatedTree
from phloem.scheduler.batch import BatchRow, ScheduleBatch, to_worker_batch
from phloem.scheduler.budget import NewTokenRatio, max_total_tokens
from phloem.scheduler.config import SchedulerConfig
from phloem.scheduler.decode import DecodePlanner
from phloem.scheduler.decode_set import Decode
from phloem.scheduler.fairness import FairShare
from phloem.scheduler.foresight import steady_steps, take_steps
from phloem.scheduler.in_batch import MakeGroups, in_batch_sharing
from phloem.scheduler.intake import ResultIntake
from phloem.scheduler.masks import MaskFiller
from phloem.scheduler.news import News, PlainTokens
from phloem.scheduler.ordering import QueueOrder
from phloem.scheduler.pacing import pace_keeper
from phloem.scheduler.pause import PauseMode
from phloem.scheduler.policies import create_policy
from phloem.scheduler.ports import (
    ModelWorkerBatch,
    PoolingMode,
    StepResult,
    StopChecker,
    TextTokenizer,
    TokenMasks,
    TokenMatcher,
)
from phloem.scheduler.prefill import PrefillPlanner
from phloem.scheduler.queue import WaitingQueue
from phloem.scheduler.reception import Reception
from phloem.scheduler.request import FinishReason, Request, RequestOutput, Status, TokenLogprob
from phloem.scheduler.sampling import SamplingParams
from phloem.scheduler.table import FINISHED, RequestTable


class Scheduler:
    """Continuous batching over a cache manager. One thread uses it.

    `schedule()` gives the next batch or None; `process(batch, result)` takes its result in. Several
    batches may be in flight, processed in the order in which they were scheduled. `take_outputs()`
    hands over the news of all requests since it was last called.

    `stop_checker` is needed for stop strings. With a `tokenizer` text that a constraint forces gets
    the tokens that it makes of it; without, the model chooses among those that spell it.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        manager: CacheManager,
        stop_checker: StopChecker | None = None,
        clock: Callable[[], float] = time.monotonic,
        make_groups: MakeGroups = SimulatedTree,
        tokenizer: TextTokenizer | None = None,
    ) -> None:
        self.config = config
        self.manager = manager
        self._clock = clock
        self._waiting = WaitingQueue()
        self._reception = Reception(
            config,
            manager,
            self._waiting,
            self.max_total_tokens,
            stop_checker,
            tokenizer,
            clock,
            self._end,
        )
        self.num_retractions = 0
        """How often a request's memory was taken since the start, because there was too little."""
        self._pause: PauseMode | None = None
        self._steps_in_flight = 0
        # Everybody who holds a lease, in order of admission: a dict, since batch order must be
        # deterministic.
        self._active: dict[str, Request] = {}
        self._table = RequestTable(
            manager.rows.max_rows, self.max_total_tokens, config.eos_token_ids
        )
        self._news = News()
        self._ratio = NewTokenRatio(config.schedule_conservativeness)
        self._fair = FairShare(self._active.values) if config.enable_tenant_fairness else None
        order = QueueOrder(
            self._waiting,
            manager,
            create_policy(config),
            by_priority=config.uses_priorities,
            fair=self._fair,
        )
        self._pace = pace_keeper(config.itl_target_ms, config.chunked_prefill_size, clock)
        self._prefill = PrefillPlanner(
            config,
            manager,
            self._table,
            order,
            in_batch_sharing(config, manager, make_groups),
            self._fair,
            self._pace,
            self._ratio,
            clock,
            self._take_back,
        )
        most_new = config.chunked_prefill_size or config.max_prefill_tokens
        self._decode = DecodePlanner(
            manager, self._table, self._ratio, most_new, self._retract, self._end
        )
        self._masks = MaskFiller(config.vocab_size, config.eos_token_ids)
        self._intake = ResultIntake(
            manager, self._table, config.eos_token_ids, clock, self._tell, self._end, self._fail
        )
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
        *,
        timeout: float | None = None,
        queue_timeout: float | None = None,
        priority: int = 0,
        tenant: Hashable = None,
        matcher: TokenMatcher | None = None,
        steer: bool = False,
        jump_forward: bool | None = None,
        retention: Retention | None = None,
        pooling: PoolingMode | None = None,
        explain_cache: bool = False,
    ) -> Request:
        """Queue a request.

        Args:
            timeout: seconds from now after which it ends; None: as configured.
            queue_timeout: the same if it was not let in by then.
            priority: how urgent it is; the higher the more, unless configured the other way round.
            tenant: for whom it is, where tenants are served fairly; None: its namespace tells.
            matcher: of a constraint that the output has to keep to, at the beginning of a text; it
                is the request's own from then on. The request ends where nothing may follow.
            steer: whether near the limit of new tokens only those may come after which the text can
                still be completed, as far as the matcher can tell.
            jump_forward: whether forced text is appended without forward passes; None: as
                configured.
            retention: of the beginning of the prompt, whose KV is then evicted last for a while;
                where it has no length, of all of the prompt.
            pooling: how the prompt becomes one vector, with which the request ends
                (`RequestOutput.embedding`); `params.max_new_tokens` must be 0 then. A mean needs
                the hidden states of all tokens, so that nothing cached is used for it.
            explain_cache: whether its outputs tell why no more of the prompt was found cached.

        Raises:
            ValueError: if the id is in use, the prompt is empty or has ids outside the vocabulary,
                the namespace is none that the cache takes, a limit is no time, or if it could never
                fit; nothing is queued then.
            QueueFullError: too many wait; nor is it then.
        """
        if self.has(rid):
            raise ValueError(f"request id {rid!r} is in use: give each request its own")
        if not self._active and not len(self._waiting):
            # Here and not in `schedule`, which nobody calls while there is nothing to do.
            self._ratio.reset()
        return self._reception.receive(
            rid,
            prompt_ids,
            params,
            namespace,
            timeout,
            queue_timeout,
            priority,
            tenant,
            matcher,
            steer,
            jump_forward,
            retention,
            pooling,
            explain_cache,
        )

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

    def due_in(self) -> float | None:
        """Seconds until a time limit is over, which the next `schedule` sees to; None: none is.

        Who drives the scheduler waits no longer than that where there is nothing to do.
        """
        due = self._reception.deadlines.next
        return None if due is None else max(due - self._clock(), 0.0)

    # All may be held still, and weights change.

    @property
    def paused(self) -> PauseMode | None:
        """How it is held still; None: it is not."""
        return self._pause

    def pause(self, mode: PauseMode) -> None:
        """Schedule nothing until `resume`. Steps in flight are processed; requests may come and be
        aborted. May be called again, in another mode too.
        """
        self._pause = mode
        if mode is PauseMode.ABORT:
            for request in (*self._waiting, *self._active.values()):
                self.abort(request.rid)

    def resume(self) -> None:
        """Go on."""
        self._pause = None

    @property
    def weight_version(self) -> str:
        """The name of the weights that the runner has."""
        return self._reception.weights.name

    def set_weight_version(self, name: str) -> None:
        """Say that the runner has other weights now: what was cached before is used no more.

        Requests that hold memory go on over KV of both versions, so nothing of theirs is cached any
        more; pause with `PauseMode.RETRACT` before to let them start over instead.
        """
        weights = self._reception.weights
        if name == weights.name:
            return
        weights.name = name
        for request in self._active.values():
            request.publish = False
        for request in self._waiting:
            weights.move(request)
        self._waiting.version += 1

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
    def new_token_ratio(self) -> float:
        """The share of their allowed output that running requests are expected to use."""
        return self._ratio.value

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do: no news is left to take, and nobody waits or holds
        memory, or they are paused.
        """
        if self._news:
            return False
        if self._pause is not None:
            return self._pause is not PauseMode.RETRACT or not self._active
        return not (self._active or len(self._waiting))

    def schedule(self) -> ScheduleBatch | None:
        """The next step, prefill before decode; None if nothing can run now.

        None while steps are in flight may also mean that one of them has to be processed first.
        """
        self._end_overdue()
        if self._pause is not None:
            self._hold_still()
            return None
        table = self._table
        # From before the admissions: what is prefilled in this step does not decode in it.
        held = table.held
        chunks = self._prefill.plan(self._waiting, self._active)
        if chunks and self.config.priority_preemption_threshold is not None:
            # Somebody may have given way, and somebody else have the row now.
            held = table.held[~np.isin(table.held, [row.lease.row for row in chunks])]
        decode: Decode | None = None
        if (
            len(held)
            and (not chunks or self.config.enable_mixed_chunk)
            and not self._prefill.must_drain
        ):
            several, decode = self._decode.plan(held, may_retract=not chunks)
            if several or decode:
                self._ratio.step()
            chunks += several
        return ScheduleBatch(chunks, decode) if chunks or decode else None

    def launch(self, batch: ScheduleBatch) -> ModelWorkerBatch:
        """The batch's flat form for the runner; from here on the step counts as in flight."""
        table, chunks, decode = self._table, batch.chunks, batch.decode
        worker_batch = to_worker_batch(
            batch,
            table,
            self.manager.rows.table,
            self.config.eos_token_ids,
            relays=self._steps_in_flight > 0,
        )
        self._steps_in_flight += 1
        if chunks:
            count = len(chunks)
            table.launch(batch.rows[:count], batch.samples[:count])
            self._mark(chunks)
        if decode is not None:
            table.launch_decode(decode.members.books)
            decode.members.launched(decode.ends)
        if self._pace is not None:
            self._pace.launched()
        return worker_batch

    def _mark(self, chunks: Sequence[BatchRow]) -> None:
        now = self._clock()
        for row in chunks:
            # Forced tokens of an output come in chunks too.
            if row.start < row.request.prefill_end:
                row.request.mark("chunk", now, row.query_len)

    def masks(self, batch: ScheduleBatch) -> TokenMasks | None:
        """Which tokens the rows of a launched batch may get that a constraint holds for; None if
        that concerns nobody.

        Call it, where `batch.guided` names any, once all steps launched before were processed: the
        tokens that these gave decide. The arrays are valid until the next call.
        """
        return self._masks.fill(batch.guided, batch.ends)

    def process(self, batch: ScheduleBatch, result: StepResult | Exception) -> None:
        """Take in what a step produced, or the exception that it ended with (its requests end
        then).
        """
        if self._pace is not None:
            self._pace.processed(batch)
        self._steps_in_flight -= 1
        alone = not self._steps_in_flight
        if (
            batch.decode is not None
            and not batch.chunks
            and not isinstance(result, Exception)
            and self._intake.take_in_decode(batch.decode, result, alone)
        ):
            return
        table, rows = self._table, batch.rows
        table.land(rows, batch.samples)
        # They ended while the step ran: what it made of them is dropped.
        ended = table.status[rows] == FINISHED
        gone = table.requests(rows[ended])
        if isinstance(result, Exception):
            for request in table.requests(rows[~ended]):
                self._fail(request, f"the model step failed: {result}")
        else:
            self._intake.take_in(batch, result, ended, alone)
        for request in gone:
            self._release_if_over(request)

    def take_outputs(self) -> News:
        """The news since the last call, in order; read them before the next step."""
        news, self._news = self._news, News()
        return news

    # Simulations go ahead.

    @property
    def holders(self) -> list[Request]:
        """Who holds memory, in order of admission."""
        return self._table.requests(self._table.held)

    def steady_steps(self, limit: int) -> int:
        """How many of the next steps, at most `limit`, are surely alike: decodes of all `holders`,
        if nobody comes and no token ends an output.
        """
        if len(self._waiting) or self._pause is not None or self.due_in() is not None:
            return 0
        return steady_steps(self._table, self.manager, limit)

    def take_steps(self, steps: int, tokens: npt.NDArray[np.int32]) -> None:
        """What `steps` steady steps do that give token `tokens[i]` to the i-th of `holders` each;
        there are no news of them.
        """
        take_steps(self._table, self.manager, self._ratio, steps, tokens)

    # Inside.

    def _tell(self, news: RequestOutput | PlainTokens) -> None:
        self._news.parts.append(news)

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
        self._table.unsettle()
        self._tell(request.report(token_ids, logprobs))
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
        lease = request.lease
        if lease is None:
            return
        del self._active[request.rid]
        if self._fair is not None:
            self._fair.charge_output(request)
        self.manager.close(lease, request.tokens if request.publish else None)
        self._table.release(request, lease)

    def _retract(self, request: Request) -> None:
        """Take a request's memory, because there is too little; it ends if that came too often."""
        if request.retractions >= self.config.max_retractions:
            message = (
                f"the request was retracted {request.retractions} times, because others needed the "
                "memory: try again later"
            )
            seconds = self._reception.limit.retry_after(self._waiting, self._clock())
            self._end(request, FinishReason("error", None, message, 503, seconds))
            return
        self._take_back(request)
        request.retractions += 1
        self.num_retractions += 1

    def _take_back(self, request: Request) -> None:
        """Take a request's memory; it goes to the front of the queue and keeps its output."""
        self._news.settle()
        self._close(request)
        request.mark("taken_back", self._clock())
        request.status = Status.WAITING
        request.scheduled = 0
        # What was computed before the weights changed, if they did, is computed anew.
        self._reception.weights.move(request)
        request.publish = True
        self._waiting.add_first(request)

    def _hold_still(self) -> None:
        """Take all memory back, if that is how it is paused, once no step in flight uses it."""
        held = self._table.held
        if self._pause is PauseMode.RETRACT and not self._table.in_flight[held].any():
            for request in reversed(self._table.requests(held)):
                self._take_back(request)

    def _end_overdue(self) -> None:
        reception = self._reception
        due = reception.deadlines.next
        if due is None or (now := self._clock()) < due:
            return
        retry_after = reception.limit.retry_after(self._waiting, now)
        for request, reason in reception.deadlines.overdue(now, retry_after):
            self._waiting.remove(request.rid)
            self._end(request, reason)
