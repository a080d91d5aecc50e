"""A scheduler in the manner of vLLM's: continuous batching, chunked prefill, preemption.

Owns which request computes how many tokens in a step. Which blocks it gets, and what of it is
computed already, it asks the block manager: those calls are all that an adopter has to make.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from phloem.radix_cache.adapters.block_manager import Content, KVCacheManager


@dataclass(eq=False)
class Request:
    """A prompt, what was said so far, and how much of both is computed."""

    request_id: str
    all_token_ids: list[int]
    max_new_tokens: int
    lora_name: str | None = None
    cache_salt: str | None = None
    contents: Sequence[Content] = ()
    num_computed_tokens: int = 0
    output: list[int] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        """Prompt and output so far."""
        return len(self.all_token_ids)


@dataclass(frozen=True)
class Entering:
    """A request that the runner does not know, or no more since it was preempted."""

    tokens: list[int]
    start: int
    table: list[int]
    lora_name: str | None


@dataclass
class StepPlan:
    """What a step sends to the runner: how many tokens each request computes, and what changed."""

    num_tokens: dict[str, int] = field(default_factory=dict)
    entering: dict[str, Entering] = field(default_factory=dict)
    appended: dict[str, list[int]] = field(default_factory=dict)
    moved: dict[str, list[int]] = field(default_factory=dict)
    """Whole new tables: blocks at the front were exchanged for equal ones."""
    leaving: list[str] = field(default_factory=list)


class BatchScheduler:
    """First come, first served; the youngest running request is preempted when blocks run out."""

    def __init__(self, manager: KVCacheManager, max_seqs: int, max_step_tokens: int) -> None:
        self._manager = manager
        self._max_seqs = max_seqs
        self._max_step_tokens = max_step_tokens
        self._waiting: deque[Request] = deque()
        self._running: list[Request] = []
        self._left: list[str] = []
        self.preemptions = 0
        self.moved_tables = 0

    def add(self, request: Request) -> None:
        """Queue a request. Raises `ValueError` if it could never run, even alone."""
        needed = request.num_tokens + request.max_new_tokens
        slots = (self._manager.num_blocks - 1) * self._manager.block_size
        if needed > slots:
            raise ValueError(
                f"request {request.request_id!r} may need {needed} slots of a pool of {slots}: "
                "give the pool more blocks, or shorten the request"
            )
        self._waiting.append(request)

    @property
    def has_work(self) -> bool:
        """Whether anything waits or runs."""
        return bool(self._waiting or self._running)

    def schedule(self) -> StepPlan:
        """Plan a step: those that run go on, then those that wait come in if there is room."""
        plan = StepPlan()
        preempted = self._continue_running(plan)
        if not preempted:
            self._let_in(plan)
        moved = self._manager.take_moved()
        self.moved_tables += len(moved)
        for request_id, blocks in moved.items():
            # The whole table: what was appended in this step is part of it.
            plan.appended.pop(request_id, None)
            (plan.moved[request_id],) = blocks.get_block_ids()
        plan.leaving, self._left = self._left, []
        return plan

    def update(self, plan: StepPlan, sampled: dict[str, int]) -> None:
        """Take a step's results in: what is computed, what was said, who is done."""
        for request in list(self._running):
            if request.request_id not in plan.num_tokens:
                continue
            request.num_computed_tokens += plan.num_tokens[request.request_id]
            if request.num_computed_tokens == request.num_tokens:
                request.all_token_ids.append(sampled[request.request_id])
                request.output.append(sampled[request.request_id])
            # At once, so that whoever is let in next finds it.
            self._manager.cache_blocks(request, request.num_computed_tokens)
            if len(request.output) == request.max_new_tokens:
                self._running.remove(request)
                self._leave(request)

    def _continue_running(self, plan: StepPlan) -> bool:
        """Plan the running requests, oldest first; whether any had to be preempted."""
        preempted = False
        at = 0
        while at < len(self._running):
            request = self._running[at]
            n = min(request.num_tokens - request.num_computed_tokens, self._budget(plan))
            if not n:
                break
            while (new := self._manager.allocate_slots(request, n)) is None:
                victim = self._running.pop()
                self._preempt(victim)
                preempted = True
                if victim is request:
                    return preempted
            plan.num_tokens[request.request_id] = n
            (plan.appended[request.request_id],) = new.get_block_ids()
            at += 1
        return preempted

    def _let_in(self, plan: StepPlan) -> None:
        while self._waiting and len(self._running) < self._max_seqs and self._budget(plan):
            request = self._waiting[0]
            prefix, hit = self._manager.get_computed_blocks(request)
            n = min(request.num_tokens - hit, self._budget(plan))
            if self._manager.allocate_slots(request, n, hit, prefix) is None:
                break
            self._running.append(self._waiting.popleft())
            request.num_computed_tokens = hit
            plan.num_tokens[request.request_id] = n
            (table,) = self._manager.get_block_ids(request.request_id)
            plan.entering[request.request_id] = Entering(
                list(request.all_token_ids), hit, table, request.lora_name
            )

    def _preempt(self, request: Request) -> None:
        """Give its blocks up; what of them is not evicted meanwhile is found again."""
        self._leave(request)
        request.num_computed_tokens = 0
        self._waiting.appendleft(request)
        self.preemptions += 1

    def _leave(self, request: Request) -> None:
        self._manager.free(request)
        self._left.append(request.request_id)

    def _budget(self, plan: StepPlan) -> int:
        return self._max_step_tokens - sum(plan.num_tokens.values())
