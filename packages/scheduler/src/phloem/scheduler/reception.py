"""Where requests come in: what a caller asks is checked, and becomes a request or an error."""

from __future__ import annotations

from collections.abc import Callable, Hashable

import numpy.typing as npt

from phloem.mem_pool import CacheManager, Retention
from phloem.scheduler.config import SchedulerConfig
from phloem.scheduler.deadlines import QUEUE, TOTAL, Deadlines
from phloem.scheduler.forced_text import ForcedText
from phloem.scheduler.guide import Guide
from phloem.scheduler.limits import Newcomer, QueueLimit
from phloem.scheduler.ports import (
    PoolingMode,
    StopChecker,
    StopMatcher,
    TextTokenizer,
    TokenMatcher,
)
from phloem.scheduler.queue import WaitingQueue
from phloem.scheduler.randomness import draw_seeds
from phloem.scheduler.request import FinishReason, Request
from phloem.scheduler.sampling import SamplingParams
from phloem.scheduler.validation import (
    checked_new_tokens,
    checked_pooling,
    checked_priority,
    checked_prompt,
    checked_retention,
    checked_seconds,
)
from phloem.scheduler.weights import Namespace, WeightVersion


class Reception:
    """Puts requests into the queue, with their time limits, or refuses them.

    Attributes:
        limit: on the queue.
        deadlines: of the requests that came in.
        weights: whose version the requests' namespaces have.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        manager: CacheManager,
        queue: WaitingQueue,
        max_total_tokens: int,
        stop_checker: StopChecker | None,
        tokenizer: TextTokenizer | None,
        clock: Callable[[], float],
        end: Callable[[Request, FinishReason], None],
    ) -> None:
        self.limit = QueueLimit(config.max_queued_requests, config.max_queued_tokens)
        self.deadlines = Deadlines()
        self.weights = WeightVersion()
        self._config = config
        self._manager = manager
        self._queue = queue
        self._max_total_tokens = max_total_tokens
        self._stop_checker = stop_checker
        self._forced_text = None if tokenizer is None else ForcedText(tokenizer)
        self._clock = clock
        self._end = end
        self._seeds = draw_seeds(config.default_seed)

    def receive(
        self,
        rid: str,
        prompt_ids: npt.ArrayLike,
        params: SamplingParams,
        namespace: Namespace,
        timeout: float | None,
        queue_timeout: float | None,
        priority: int,
        tenant: Hashable,
        matcher: TokenMatcher | None,
        steer: bool,
        jump_forward: bool | None,
        retention: Retention | None,
        pooling: PoolingMode | None,
        explain_cache: bool,
    ) -> Request:
        """The request, queued; see `Scheduler.add`."""
        config = self._config
        prompt = checked_prompt(prompt_ids, config.vocab_size)
        params.check_vocabulary(config.vocab_size)
        tenant = namespace if tenant is None else tenant
        namespace = self._checked_namespace(namespace)
        priority = checked_priority(priority, config.uses_priorities)
        if config.schedule_low_priority_values_first:
            priority = -priority
        total = checked_seconds(timeout, "timeout") or config.request_timeout
        queued = checked_seconds(queue_timeout, "queue_timeout") or config.queue_timeout
        capacity, longest = self._manager.capacity, self._max_total_tokens
        max_new_tokens = checked_new_tokens(
            len(prompt), params, config.context_len, capacity, longest
        )
        stop_matcher = self._stop_matcher(params)
        if retention is not None:
            retention = checked_retention(retention, len(prompt))
        pooling = checked_pooling(pooling, params)
        now = self._clock()
        self._make_room(Newcomer(len(prompt), priority, tenant, config.enable_tenant_fairness), now)
        request = Request(
            rid=rid,
            prompt_ids=prompt,
            params=params,
            max_new_tokens=max_new_tokens,
            seed=next(self._seeds) if params.seed is None else params.seed,
            arrived=now,
            namespace=namespace,
            stop_matcher=stop_matcher,
            guide=None if matcher is None else self._guide(matcher, steer, jump_forward, params),
            priority=priority,
            tenant=tenant,
            retention=retention,
            pooling=pooling,
            explain_cache=explain_cache,
        )
        self._queue.add(request)
        for kind, seconds in ((TOTAL, total), (QUEUE, queued)):
            if seconds is not None:
                self.deadlines.add(request, kind, seconds)
        return request

    def _guide(
        self, matcher: TokenMatcher, steer: bool, jump: bool | None, params: SamplingParams
    ) -> Guide:
        # Each token's logprob is that of a forward pass, in which it was sampled.
        free = params.top_logprobs is None
        jump = self._config.enable_jump_forward if jump is None else jump
        return Guide(matcher, steer, self._forced_text, free and jump, may_replace=free)

    def _make_room(self, newcomer: Newcomer, now: float) -> None:
        """End those that give way to a newcomer, if the queue is full and there are enough."""
        for request in self.limit.make_room(self._queue, newcomer, now):
            self._queue.remove(request.rid)
            urgent = request.priority < newcomer.priority
            whose = "a more urgent request" if urgent else "a tenant with fewer requests"
            message = f"the queue is full, and {whose} took this one's place: try again later"
            seconds = self.limit.retry_after(self._queue, now)
            status = 503 if urgent else 429
            self._end(request, FinishReason("abort", None, message, status, seconds))

    def _checked_namespace(self, given: Namespace) -> Namespace:
        """Let the cache refuse a namespace now: in the middle of a step it would end them all."""
        try:
            namespace = self.weights.namespace(given)
            self._manager.peek((), namespace)
        except (TypeError, ValueError) as error:
            raise ValueError(f"namespace {given!r} cannot be used: {error}") from error
        return namespace

    def _stop_matcher(self, params: SamplingParams) -> StopMatcher | None:
        if not params.stop:
            return None
        if self._stop_checker is None:
            raise ValueError(
                "stop strings were given, but this scheduler has no StopChecker to turn tokens "
                "into text: pass one at construction"
            )
        return self._stop_checker.matcher(params.stop)
