"""Decode steps taken together leave the scheduler as single ones do."""

from __future__ import annotations

import numpy as np
import pytest

from phloem.mem_pool import CacheManager, PageAllocator, RowTable
from phloem.radix_cache import RadixCache
from phloem.scheduler import SamplingParams, Scheduler, SchedulerConfig, StepResult

VOCAB = 1000


def make(capacity=1200, page_size=1, **config):
    settings = SchedulerConfig(context_len=1000, vocab_size=VOCAB, **config)
    manager = CacheManager(
        RadixCache(page_size, values="numpy"),
        RowTable(settings.max_running_requests, 1000),
        PageAllocator(capacity, page_size),
    )
    return Scheduler(settings, manager, clock=lambda: 0.0)


def add(scheduler, rid, prompt=10, new=900, **params):
    prompt_ids = [len(rid) * 7 + i for i in range(prompt)]
    return scheduler.add(rid, prompt_ids, SamplingParams(max_new_tokens=new, **params))


def step(scheduler, token=5):
    """One whole step that yields `token` in every row."""
    batch = scheduler.schedule()
    samples = scheduler.launch(batch).samples
    tokens = np.full(int(samples.sum()), token, np.int32)
    scheduler.process(batch, StepResult(tokens, samples.astype(np.int32)))
    return scheduler.take_outputs()


@pytest.fixture(params=[False, True], ids=["singly", "together"])
def go(request):
    """Takes steps."""

    def steps(scheduler, n):
        if not request.param:
            for _ in range(n):
                step(scheduler)
            return
        assert scheduler.steady_steps(n) == n
        scheduler.take_steps(n, np.full(len(scheduler.holders), 5, np.int32))

    return steps


def test_single_steps_go_on_where_these_end(go):
    scheduler = make()
    request = add(scheduler, "a", new=40)
    for _ in range(4):
        step(scheduler, token=7)
    go(scheduler, 20)
    batch = scheduler.schedule()
    assert batch.decode.starts.tolist() == [request.num_tokens - 1] == [10 + 23]
    assert scheduler.launch(batch).input_ids.tolist() == [5]


@pytest.mark.parametrize("page_size", [1, 16])
def test_requests_have_the_tokens_and_the_memory(go, page_size):
    scheduler = make(page_size=page_size)
    one, other = add(scheduler, "a"), add(scheduler, "bc", prompt=17, new=40)
    step(scheduler)
    go(scheduler, 30)
    assert [one.output_ids.tolist(), other.output_ids.tolist()] == [[5] * 31, [5] * 31]
    # Of the newest token there is no KV yet.
    assert [one.lease.committed, other.lease.committed] == [10 + 30, 17 + 30]
    scheduler.manager.check()
    for _ in range(9):
        news = step(scheduler)
    assert [o.finish_reason.type for o in news if o.finish_reason] == ["length"]
    assert other.num_output == 40


def test_what_is_expected_of_running_requests_falls_with_each_step(go):
    """600 more tokens do not fit beside 0.7 of what is left of the other's 900, but beside 0.4."""
    scheduler = make()
    add(scheduler, "runs")
    step(scheduler)
    go(scheduler, 300)
    late = add(scheduler, "comes", new=600)
    step(scheduler)
    assert late.admitted is not None


def test_that_it_would_not_fit_earlier():
    scheduler = make()
    add(scheduler, "runs")
    step(scheduler)
    late = add(scheduler, "comes", new=600)
    step(scheduler)
    assert late.admitted is None


def test_cached_prefixes_make_room(go):
    scheduler = make(capacity=130)
    add(scheduler, "cached", prompt=100, new=1)
    step(scheduler)
    add(scheduler, "runs", prompt=10, new=100, ignore_eos=True)
    step(scheduler)
    go(scheduler, 60)
    scheduler.manager.check()
    assert scheduler.manager.available == 130 - 70


def test_steps_end_before_memory_does():
    scheduler = make(capacity=100, schedule_conservativeness=0.01)
    for rid in ("a", "bc", "def"):
        add(scheduler, rid, new=60)
    for _ in range(3):
        step(scheduler)
    assert len(scheduler.holders) == 3
    steps = scheduler.steady_steps(1000)
    assert 0 < steps < 59
    assert scheduler.manager.available - 3 * steps in (0, 1, 2)
    scheduler.take_steps(steps, np.full(3, 5, np.int32))
    scheduler.manager.check()
    step(scheduler)
    assert len(scheduler.holders) == 2


def test_steps_end_before_an_output_does():
    scheduler = make()
    add(scheduler, "a", new=10)
    step(scheduler)
    assert scheduler.steady_steps(1000) == 8
    assert scheduler.steady_steps(3) == 3


def test_nothing_is_steady_while_somebody_waits_or_computes_a_prompt_or_is_limited():
    idle = make()
    assert idle.steady_steps(5) == 0
    chunked = make(chunked_prefill_size=16)
    add(chunked, "a", prompt=40)
    assert chunked.steady_steps(5) == 0
    step(chunked)
    assert chunked.steady_steps(5) == 0
    limited = make(request_timeout=9.0)
    add(limited, "a")
    step(limited)
    assert limited.steady_steps(5) == 0
    in_flight = make()
    add(in_flight, "a")
    step(in_flight)
    in_flight.launch(in_flight.schedule())
    assert in_flight.steady_steps(5) == 0


def test_more_steps_than_memory_has_are_refused():
    scheduler = make(capacity=100)
    add(scheduler, "a", new=80)
    step(scheduler)
    with pytest.raises(ValueError, match="memory does not suffice for 95 steps"):
        scheduler.take_steps(95, np.full(1, 5, np.int32))
