"""A decode step as an engine takes it: scheduler, cache manager, runner and the messages of it.

Prompts are published to the prefix cache without being computed, over a KV pool of random numbers,
so that each request only computes its last token before it decodes.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import msgspec
import numpy as np
import torch

from benchmarks.kernels.attention import filled_pool
from phloem.mem_pool import CacheManager, RowTable, TokenAllocator
from phloem.mem_pool.kv import KVShape
from phloem.model_runner import LlamaModel, ModelRunner
from phloem.radix_cache import RadixCache
from phloem.scheduler import NormalLoop, SamplingParams, Scheduler, SchedulerConfig
from phloem.server.messages import TokenBatch
from phloem.server.step_news import step_news

_SETTLING = 5
"""Steps at either end that are not counted: prompts, and those who leave."""

_SPARE = 8
"""Tokens a request that nobody uses, since admission keeps some free."""


@dataclass(frozen=True, slots=True)
class EngineStep:
    """Seconds of one step, and of it those outside of the native calls that run it."""

    step: float
    outside: float


def engine_step(
    model: LlamaModel,
    native: Callable[[], float],
    batch: int,
    context: int,
    kv_dtype: torch.dtype,
    steps: int,
) -> EngineStep:
    """The median of `steps` decodes of `batch` requests; `native()` is the seconds that native
    calls have taken so far.
    """
    c = model.config
    shape = KVShape(c.num_layers, c.num_kv_heads, c.head_dim, kv_dtype)
    new = steps + 2 * _SETTLING
    most = context + new + _SPARE
    pool = filled_pool(batch * most + 1, shape)
    rows = RowTable(batch, most)
    manager = CacheManager(RadixCache(values="numpy"), rows, TokenAllocator(pool.num_slots - 1))
    config = SchedulerConfig(
        context_len=most,
        vocab_size=c.vocab_size,
        eos_token_ids=(0,),
        max_running_requests=batch,
        chunked_prefill_size=None,
        clip_max_new_tokens=1,
    )
    scheduler = Scheduler(config, manager)
    took: list[float] = []
    outside: list[float] = []
    encoder = msgspec.msgpack.Encoder()
    with ModelRunner(model, pool, rows.table) as runner:
        loop = NormalLoop(scheduler, runner)
        _let_in(scheduler, batch, context, new)
        while not loop.idle:
            before, began = native(), time.perf_counter()
            encoder.encode(TokenBatch(step_news(loop.step(), {})))
            took.append(time.perf_counter() - began)
            outside.append(took[-1] - (native() - before))
    counted = slice(_SETTLING, -_SETTLING)
    return EngineStep(statistics.median(took[counted]), statistics.median(outside[counted]))


def _let_in(scheduler: Scheduler, batch: int, context: int, new: int) -> None:
    random, manager = np.random.default_rng(0), scheduler.manager
    for i in range(batch):
        prompt = random.integers(1, scheduler.config.vocab_size, context).astype(np.int32)
        lease = manager.open(prompt, ())
        assert lease is not None, "there is a row for each"
        manager.extend(lease, context - 1 - lease.allocated)
        manager.commit(lease, context - 1 - lease.committed)
        manager.close(lease, prompt)
        params = SamplingParams(temperature=0.0, max_new_tokens=new, ignore_eos=True)
        scheduler.add(f"{i}", prompt, params)
