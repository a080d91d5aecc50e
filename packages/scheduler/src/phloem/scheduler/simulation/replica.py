"""One engine without a model: the real scheduler, pool and tree, and a clock that the cost model
moves.

Owns how far it has come. Steps in which the same requests decode and nothing else can happen are
foreseen, and taken together when somebody asks; what comes of it equals what single steps give.
"""

from __future__ import annotations

import math
from itertools import count

import numpy as np
import numpy.typing as npt

from phloem.mem_pool import CacheManager, PageAllocator, RowTable
from phloem.radix_cache import RadixCache
from phloem.scheduler.batch import ScheduleBatch
from phloem.scheduler.errors import QueueFullError
from phloem.scheduler.ports import StepResult
from phloem.scheduler.request import Request, Status
from phloem.scheduler.sampling import SamplingParams
from phloem.scheduler.scheduler import Scheduler
from phloem.scheduler.simulation.records import Floats, Indices, Records
from phloem.scheduler.simulation.setup import Setup
from phloem.scheduler.simulation.trace import END_OF_TEXT, VOCAB_SIZE, TracedRequest

_NONE: Floats = np.empty(0)


class _Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Replica:
    """One engine. Its loop has nothing in flight between two steps.

    Args:
        setup: how it is configured.
        context_len: tokens of the longest request.
        every_step: foresee nothing.
    """

    def __init__(self, setup: Setup, context_len: int, every_step: bool = False) -> None:
        config = setup.scheduler_config(context_len, VOCAB_SIZE, (END_OF_TEXT,))
        # The tree tells by its clock what was used first, so no two uses may have one time.
        tree = RadixCache(setup.page_size, values="numpy", clock=count().__next__, ghosts=0)
        self.manager = CacheManager(
            tree,
            RowTable(config.max_running_requests, context_len),
            PageAllocator(setup.pool_tokens, setup.page_size),
        )
        self._clock = _Clock()
        self._scheduler = Scheduler(config, self.manager, clock=self._clock)
        self._cost = setup.cost_model
        # A chunk that is sized by the pace of decodes has to see each of them.
        self._every_step = every_step or setup.more.get("itl_target_ms") is not None
        self._now = 0.0
        """When the last step ended, or the first request came after it."""
        self._busy_since = 0.0
        self._live: dict[int, Request] = {}
        self._foreseen: Floats | None = None
        """When foreseen steps end; None: not worked out since something happened."""
        self._decoding: Indices = np.empty(0, np.int64)
        """The requests that take part in them."""

    def submit(
        self,
        index: int,
        request: TracedRequest,
        prompt_ids: npt.NDArray[np.int32],
        at: float,
        records: Records,
    ) -> bool:
        """Give it a request after the steps that start before; False if it is refused."""
        self.catch_up(at, records)
        params = SamplingParams(
            max_new_tokens=request.allowed,
            temperature=0,
            ignore_eos=request.max_tokens is None,
            seed=index,  # names the request in batches
        )
        self._clock.now = at
        priority = request.priority if self._scheduler.config.uses_priorities else 0
        try:
            added = self._scheduler.add(
                str(index), prompt_ids, params, priority=priority, tenant=request.tenant or None
            )
        except (ValueError, QueueFullError):
            return False
        if not self._live:
            self._now = self._busy_since = max(self._now, at)
        self._live[index] = added
        self._foreseen = None
        return True

    def next_event(self, records: Records) -> float:
        """When the first step starts that is not foreseen; infinity if there is nothing to do."""
        if not self._live:
            return math.inf
        if self._foreseen is None:
            self._foresee(records)
        assert self._foreseen is not None, "it was just worked out"
        return float(self._foreseen[-1]) if len(self._foreseen) else self._now

    def catch_up(self, until: float, records: Records) -> None:
        """Take the foreseen steps that start before `until`."""
        if self._foreseen is None or not len(self._foreseen) or until <= self._now:
            return
        # The first starts now, each of the others when the one before it ends.
        steps = 1 + int(np.searchsorted(self._foreseen[:-1], until))
        ends, self._foreseen = self._foreseen[:steps], self._foreseen[steps:]
        tokens = records.next_tokens(self._decoding)
        self._scheduler.take_steps(steps, tokens)
        records.took_run(self._decoding, ends)
        self._count(records, steps, 0, steps * len(self._decoding))
        self._now = float(ends[-1])

    def step(self, records: Records) -> tuple[list[int], float]:
        """Take the foreseen steps and one more: the requests that ended by it, and when."""
        self.catch_up(self.next_event(records), records)
        self._foreseen = None
        self._clock.now = self._now
        batch = self._scheduler.schedule()
        ended = [] if batch is None else self._run(batch, records)
        ended += self._failed(records)
        if not self._live:
            records.counters.busy_s += self._now - self._busy_since
        if batch is None and not ended:
            raise RuntimeError(
                f"nothing runs at {self._now} s although {len(self._live)} requests are not done"
            )
        return ended, self._now

    def _run(self, batch: ScheduleBatch, records: Records) -> list[int]:
        work = self._scheduler.launch(batch)
        seconds = self._cost.seconds(work.query_lens, work.seq_lens)
        index = work.sampling.seeds[work.samples]
        tokens = records.next_tokens(index)
        result = StepResult(tokens, work.samples.astype(np.int32))
        decodes = int((work.query_lens == 1).sum())
        self._count(records, 1, work.num_tokens - decodes, decodes)
        self._now += seconds
        self._clock.now = self._now
        self._scheduler.process(batch, result)
        self._scheduler.take_outputs()
        ended: list[int] = records.took(index, self._now).tolist()
        for each in ended:
            self._end(each, records)
        return ended

    def _count(self, records: Records, steps: int, prompt_tokens: int, decode_rows: int) -> None:
        counters = records.counters
        counters.steps += steps
        counters.computed_prompt_tokens += prompt_tokens
        counters.decode_rows += decode_rows
        counters.peak_running = max(counters.peak_running, self._scheduler.num_active)

    def _foresee(self, records: Records) -> None:
        """Work out the steps up to the next at which somebody may end, come in or give way."""
        self._foreseen = _NONE
        holders = self._scheduler.holders
        if self._every_step or not holders:
            return
        index = np.fromiter((request.seed for request in holders), np.int64, len(holders))
        steps = self._scheduler.steady_steps(records.unchanged_steps(index))
        if not steps:
            return
        context = int((records.prompt[index] + records.produced[index]).sum())
        seconds = self._cost.decode_seconds(len(index), context, steps)
        # Added one after the other, as single steps are: the sums are equal to the last bit.
        self._foreseen = np.cumsum(np.concatenate(([self._now], seconds)))[1:]
        self._decoding = index

    def _failed(self, records: Records) -> list[int]:
        """The requests that ended without their last token."""
        if self._scheduler.num_active + self._scheduler.num_waiting == len(self._live):
            return []
        failed = [i for i, r in self._live.items() if r.status is Status.FINISHED]
        for index in failed:
            records.failed[index] = True
            self._end(index, records)
        return failed

    def _end(self, index: int, records: Records) -> None:
        request = self._live.pop(index)
        records.finished[index] = self._now
        records.cached[index] = request.cached_tokens or 0
        records.retractions[index] = request.retractions
        if request.admitted is not None:
            records.admitted[index] = request.admitted
