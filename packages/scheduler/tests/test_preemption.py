"""Urgent requests go first, also before those that run already."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from phloem.mem_pool import CacheManager, RowTable, TokenAllocator
from phloem.radix_cache import RadixCache
from phloem.scheduler import (
    SamplingParams,
    Scheduler,
    SchedulerConfig,
    ScriptedRowError,
    Status,
    StepResult,
)


@pytest.fixture
def urgent(harness, never_ends):
    """Makes harnesses in which priorities count and running requests give way."""

    def make(**config):
        config = {"script": never_ends, "priority_preemption_threshold": 0, **config}
        return harness(enable_priority_scheduling=True, **config)

    return make


class TestQueue:
    @pytest.mark.parametrize("policy", ["fcfs", "priority", "lpm", "random"])
    def test_the_more_urgent_go_first_under_every_policy(self, harness, policy):
        h = harness(schedule_policy=policy, enable_priority_scheduling=True, max_running_requests=1)
        for i, priority in enumerate((0, 3, -2, 3, 9)):
            h.add(f"r{i}", [1 + i] * 5, max_new_tokens=1, priority=priority)
        ends = []
        while not h.loop.idle:
            ends += [o.rid for o in h.step() if o.finish_reason]
        urgent_first = ["r4", "r1", "r3", "r0", "r2"]
        assert ends == urgent_first or (
            policy == "random" and ends == ["r4", "r3", "r1", "r0", "r2"]
        )

    def test_low_values_go_first_where_that_is_configured(self, harness):
        h = harness(
            schedule_policy="priority",
            schedule_low_priority_values_first=True,
            max_running_requests=1,
        )
        for i, priority in enumerate((5, -5)):
            h.add(f"r{i}", [1 + i] * 5, max_new_tokens=1, priority=priority)
        h.step()
        assert h.outputs["r1"].finish_reason is not None
        h.run()

    def test_a_priority_that_would_be_ignored_is_refused(self, harness):
        with pytest.raises(ValueError, match=r"priority is 1, but .* set enable_priority_sched"):
            harness().add("a", [1], priority=1)
        harness().add("b", [1], priority=0)

    @pytest.mark.parametrize("priority", [True, 1.0, "high", 2**31])
    def test_a_priority_is_an_integer(self, harness, priority):
        with pytest.raises(ValueError, match=r"priority is .*: give an integer from"):
            harness(schedule_policy="priority").add("a", [1], priority=priority)

    def test_preemption_without_priorities_is_refused(self, harness):
        with pytest.raises(ValueError, match="set enable_priority_scheduling too"):
            harness(priority_preemption_threshold=0)


def test_a_more_urgent_request_takes_the_only_place(urgent, output_alone, never_ends, overlap):
    """Case SC-06."""
    h = urgent(max_running_requests=1, overlap=overlap)
    low = h.add("low", [1] * 20, max_new_tokens=50)
    h.step_until(lambda: low.num_output == 5)
    high = h.add("high", [2] * 20, max_new_tokens=5, priority=1)
    h.step()
    h.step()
    assert (low.status, high.status) == (Status.WAITING, Status.RUNNING)
    out = h.run()
    assert out["low"].token_ids == output_alone([1] * 20, 50, never_ends)
    assert out["high"].token_ids == output_alone([2] * 20, 5, never_ends)
    assert (low.preemptions, low.retractions) == (1, 0)


def test_without_preemption_it_waits(urgent):
    h = urgent(max_running_requests=1, priority_preemption_threshold=None)
    low = h.add("low", [1] * 20, max_new_tokens=50)
    h.step()
    high = h.add("high", [2] * 20, max_new_tokens=5, priority=1)
    h.step_until(lambda: high.status is not Status.WAITING)
    assert low.status is Status.FINISHED
    h.run()


@pytest.mark.parametrize(("higher", "gives_way"), [(9, False), (10, False), (11, True)])
def test_only_a_priority_beyond_the_threshold_preempts(urgent, higher, gives_way):
    h = urgent(max_running_requests=1, priority_preemption_threshold=10)
    low = h.add("low", [1] * 20, max_new_tokens=50, priority=3)
    h.step()
    h.add("high", [2] * 20, max_new_tokens=5, priority=3 + higher)
    h.step()
    assert (low.status is Status.WAITING) == gives_way
    h.run()


def test_equal_priorities_never_take_from_each_other(urgent, overlap):
    """Case SC-06: no ping-pong."""
    h = urgent(max_running_requests=2, capacity=100, overlap=overlap)
    for i in range(6):
        h.add(f"r{i}", [1 + i] * 10, max_new_tokens=20, priority=7)
    requests = [h.scheduler._waiting.get(f"r{i}") for i in range(6)]
    h.run()
    assert not any(r.preemptions for r in requests)


def test_the_least_urgent_gives_way_and_of_equals_the_latest(urgent):
    h = urgent(max_running_requests=4)
    priorities = {"a": 1, "b": 0, "c": 0, "d": 2}
    running = {r: h.add(r, [ord(r) % 40] * 5, max_new_tokens=40, priority=p)
               for r, p in priorities.items()}  # fmt: skip
    h.step()
    order = []
    for i in range(4):
        h.add(f"high{i}", [30 + i] * 5, max_new_tokens=40, priority=9)
        h.step()
        order += [r for r in running if running[r].preemptions and r not in order]
    assert order == ["c", "b", "a", "d"]
    h.run()


def test_memory_is_taken_too_from_as_many_as_it_needs(urgent, overlap):
    h = urgent(capacity=100, context_len=99, clip_max_new_tokens=4, overlap=overlap)
    lows = [h.add(f"low{i}", [1 + i] * 16, max_new_tokens=30) for i in range(4)]
    h.step()
    for _ in range(3):
        h.step()
    high = h.add("high", [9] * 36, max_new_tokens=4, priority=1)
    h.step()
    h.step()
    assert high.status is not Status.WAITING
    assert [r.preemptions for r in lows] == [0, 0, 1, 1]
    h.run()


def test_nobody_gives_way_where_that_does_not_suffice(urgent):
    h = urgent(capacity=100, context_len=99)
    equal = h.add("equal", [1] * 50, max_new_tokens=10, priority=5, ignore_eos=True)
    h.step()
    low = h.add("low", [2] * 10, max_new_tokens=10, ignore_eos=True)
    h.step()
    high = h.add("high", [3] * 50, max_new_tokens=10, priority=5, ignore_eos=True)
    for _ in range(5):
        h.step()
    assert (equal.status, low.status, high.status) == (
        Status.RUNNING,
        Status.RUNNING,
        Status.WAITING,
    )
    h.run()
    assert not low.preemptions


def test_it_is_tried_again_once_somebody_else_has_left(urgent):
    h = urgent(capacity=100, context_len=99)
    h.add("equal", [1] * 40, max_new_tokens=8, priority=5, ignore_eos=True)
    low = h.add("low", [2] * 20, max_new_tokens=20, ignore_eos=True)
    h.step()
    high = h.add("high", [3] * 70, max_new_tokens=10, priority=5, ignore_eos=True)
    h.step_until(lambda: h.outputs["equal"].finish_reason)
    h.step()
    assert (low.preemptions, high.status) == (1, Status.RUNNING)
    h.run()


def test_a_prompt_that_is_computed_in_chunks_is_finished_first(urgent, overlap):
    h = urgent(max_running_requests=1, chunked_prefill_size=16, overlap=overlap)
    low = h.add("low", [1] * 60, max_new_tokens=20)
    h.step()
    high = h.add("high", [2] * 8, max_new_tokens=2, priority=1)
    h.step_until(lambda: low.status is Status.RUNNING)
    assert high.status is Status.WAITING
    h.step_until(lambda: high.status is not Status.WAITING)
    assert h.outputs["low"].finish_reason is None
    h.run()


@pytest.mark.parametrize("rows", [3, 8])
@pytest.mark.parametrize("mixed", [False, True])
def test_each_running_request_is_in_a_step_once_though_one_before_it_gave_way(
    urgent, overlap, mixed, rows
):
    """Case SC-07: the victim's row goes to the one that it gave way to, or to nobody."""
    h = urgent(
        max_running_requests=3,
        rows=rows,
        enable_mixed_chunk=mixed,
        chunked_prefill_size=64,
        overlap=overlap,
    )
    victim = h.add("victim", [1] * 10, max_new_tokens=40, priority=-1)
    others = [h.add(f"r{i}", [2 + i] * 10, max_new_tokens=40) for i in range(2)]
    for _ in range(4):
        h.step()
    high = h.add("high", [9] * 12, max_new_tokens=3, priority=1)
    before = len(h.runner.steps)
    h.step_until(lambda: victim.preemptions)
    h.step_until(lambda: all(r.num_output > 8 for r in others))
    for step in h.runner.steps[before:]:
        assert len(set(step.rows.tolist())) == len(step.rows)
    with_high = [s for s in h.runner.steps[before:] if s.query_lens.max() == high.num_prompt]
    assert len(with_high) == 1
    if mixed:
        assert len(with_high[0].rows) == 3, "the two others decode beside the new one's prompt"
    h.run()


def test_it_is_tried_again_once_somebody_else_has_failed(urgent, never_ends):
    """Nothing is published then: only the memory that came free tells of it."""

    def script(history):
        if history[0] == 1 and len(history) > 44:
            raise ScriptedRowError("not finite")
        return never_ends(history)

    h = urgent(capacity=100, context_len=99, script=script)
    h.add("equal", [1] * 40, max_new_tokens=8, priority=5, ignore_eos=True)
    low = h.add("low", [2] * 20, max_new_tokens=30, ignore_eos=True)
    h.step()
    high = h.add("high", [3] * 70, max_new_tokens=10, priority=5, ignore_eos=True)
    h.step_until(lambda: h.outputs["equal"].finish_reason)
    h.step()
    assert (low.preemptions, high.status) == (1, Status.RUNNING)
    h.run()


def test_a_place_given_up_is_not_taken_by_one_less_urgent(urgent):
    h = urgent(capacity=100, context_len=99)
    victim = h.add("victim", [1] * 40, max_new_tokens=20, priority=3, ignore_eos=True)
    h.step()
    high = h.add("high", [2] * 60, max_new_tokens=5, priority=5, ignore_eos=True)
    least = h.add("least", [3] * 4, max_new_tokens=4, priority=1)
    h.step()
    assert high.status is Status.RUNNING
    assert (victim.status, least.status) == (Status.WAITING, Status.WAITING)
    h.step_until(lambda: least.status is not Status.WAITING)
    assert victim.status is not Status.WAITING
    h.run()


@pytest.mark.parametrize("shared", [False, True])
def test_a_shared_prefix_comes_free_once_all_who_hold_it_give_way(urgent, overlap, shared):
    """Case SC-06: one of them alone would give way in vain."""
    h = urgent(capacity=300, context_len=220, overlap=overlap)
    stems = [[1] * 100] * 2 if shared else [[1] * 60, [2] * 60]
    h.add("first", stems[0], max_new_tokens=1)
    h.run()
    lows = [h.add(f"low{i}", [*stem, 3 + i], max_new_tokens=60, ignore_eos=True)
            for i, stem in enumerate(stems)]  # fmt: skip
    for _ in range(5):
        h.step()
    high = h.add("high", [9] * 150, max_new_tokens=12, priority=1, ignore_eos=True)
    h.step()
    h.step()
    assert high.status is Status.RUNNING
    assert [low.preemptions for low in lows] == [int(shared), 1]
    out = h.run()
    assert [len(out[r].token_ids) for r in ("high", "low0", "low1")] == [12, 60, 60]
    assert [low.preemptions for low in lows] == [int(shared), 1], "nobody twice"


def test_nobody_gives_way_for_a_prefix_that_one_who_stays_holds_too(urgent, overlap):
    h = urgent(capacity=100, context_len=99, overlap=overlap)
    stem = [1] * 50
    keeps = h.add("keeps", [*stem, 2], max_new_tokens=12, priority=5, ignore_eos=True)
    h.step()
    h.step()
    low = h.add("low", [*stem, 3], max_new_tokens=25, ignore_eos=True)
    h.step()
    high = h.add("high", [4] * 45, max_new_tokens=5, priority=5, ignore_eos=True)
    while keeps.status is not Status.FINISHED:
        h.step()
        assert keeps.status is Status.FINISHED or not low.preemptions
    h.step()
    h.step()
    assert (low.preemptions, high.status) == (1, Status.RUNNING), "now it suffices"
    out = h.run()
    assert [len(out[r].token_ids) for r in ("keeps", "low", "high")] == [12, 25, 5]


def test_what_a_victim_alone_holds_counts_though_its_prefix_does_not(urgent, overlap):
    h = urgent(capacity=100, context_len=99, overlap=overlap)
    stem = [1] * 30
    h.add("keeps", [*stem, 2], max_new_tokens=12, priority=5, ignore_eos=True)
    h.step()
    h.step()
    low = h.add("low", [*stem, *[3] * 20], max_new_tokens=25, ignore_eos=True)
    h.step()
    high = h.add("high", [4] * 40, max_new_tokens=5, priority=5, ignore_eos=True)
    h.step()
    h.step()
    assert (low.preemptions, high.status) == (1, Status.RUNNING)
    h.run()


@pytest.mark.parametrize(("prompt", "gives_way"), [(42, True), (43, False)])
def test_a_prefix_that_the_urgent_one_needs_too_does_not_come_free(urgent, prompt, gives_way):
    """It lacks a place, and of the memory 155 - 41 - 9 remain beside the equal one's."""
    h = urgent(capacity=155, context_len=150, max_running_requests=2)
    stem = [1] * 50
    h.add("equal", [2] * 41, max_new_tokens=10, priority=5, ignore_eos=True)
    low = h.add("low", [*stem, 3], max_new_tokens=30, ignore_eos=True)
    h.step()
    h.add("high", [*stem, *[4] * prompt], max_new_tokens=12, priority=5, ignore_eos=True)
    h.step()
    assert bool(low.preemptions) == gives_way
    h.run()


def test_one_whose_prompt_has_just_been_computed_gives_way_in_the_next_step(urgent, overlap):
    """Nobody came or left meanwhile."""
    h = urgent(capacity=100, context_len=99, chunked_prefill_size=16, overlap=overlap)
    low = h.add("low", [1] * 50, max_new_tokens=40, ignore_eos=True)
    h.step()
    high = h.add("high", [2] * 60, max_new_tokens=5, priority=1, ignore_eos=True)
    h.step_until(lambda: low.status is Status.RUNNING)
    for _ in range(3):
        h.step()
    assert (low.preemptions, high.status) == (1, Status.PREFILL)
    h.run()


def test_when_memory_runs_out_the_least_urgent_gives_way(harness, never_ends):
    h = harness(
        capacity=60, script=never_ends, clip_max_new_tokens=2, enable_priority_scheduling=True
    )
    low = h.add("low", [1] * 8, max_new_tokens=45)
    for _ in range(4):
        h.step()
    high = h.add("high", [2] * 8, max_new_tokens=45, priority=1)  # has the shorter output
    h.step_until(lambda: low.retractions or high.retractions)
    assert (low.retractions, high.retractions) == (1, 0)
    h.run()


def test_what_is_cached_of_urgent_requests_is_kept_for_longer():
    tree = RadixCache(values="numpy", policy="priority")
    manager = CacheManager(tree, RowTable(4, 100), TokenAllocator(100))
    scheduler = Scheduler(SchedulerConfig(100, 50, enable_priority_scheduling=True), manager)
    nothing = StepResult(np.zeros(0, np.int32), np.zeros(1, np.int32))
    for rid, token, priority in (("high", 1, 5), ("low", 2, 0), ("next", 3, 0)):
        scheduler.add(rid, [token] * 40, SamplingParams(max_new_tokens=0), priority=priority)
        batch = scheduler.schedule()
        scheduler.launch(batch)
        scheduler.process(batch, nothing)
        scheduler.take_outputs()
    assert manager.peek([1] * 41) == 40
    assert manager.peek([2] * 41) < 40


ARRIVAL = st.tuples(
    st.integers(0, 12),  # steps before it comes
    st.integers(-1, 2),  # its priority
    st.integers(1, 60),  # prompt tokens
    st.integers(1, 25),  # output tokens
)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    arrivals=st.lists(ARRIVAL, min_size=2, max_size=14),
    threshold=st.integers(0, 1),
    overlap=st.booleans(),
    running=st.sampled_from([1, 3, 8]),
    capacity=st.sampled_from([128, 240]),
    page_size=st.sampled_from([1, 16]),
    chunk=st.sampled_from([None, 16]),
    stem=st.sampled_from([0, 40]),
)
def test_who_gives_way_is_less_urgent_and_gets_its_output_all_the_same(
    harness, output_alone, any_script, arrivals, threshold, overlap, running, capacity, page_size,
    chunk, stem,
):  # fmt: skip
    h = harness(
        enable_priority_scheduling=True,
        priority_preemption_threshold=threshold,
        overlap=overlap,
        max_running_requests=running,
        capacity=capacity,
        page_size=page_size,
        chunked_prefill_size=chunk,
        context_len=90,
        clip_max_new_tokens=4,
    )
    highest = max(priority for _, priority, _, _ in arrivals)
    requests = []
    for i, (steps, priority, prompt, new) in enumerate(arrivals):
        for _ in range(steps):
            h.step()
        own = stem if i % 2 else 0
        tokens = [1 + ((k >= own) * i * 7 + k) % 40 for k in range(prompt)]
        requests.append(h.add(f"r{i}", tokens, max_new_tokens=new, priority=priority))
    while not h.loop.idle:
        gone = sum(request.preemptions for request in requests)
        waited = [request for request in requests if request.status is Status.WAITING]
        h.step()
        if sum(request.preemptions for request in requests) > gone:
            assert any(r.status is not Status.WAITING for r in waited), "it was in vain"
    out = h.run()
    for request in requests:
        tokens = request.prompt_ids.tolist()
        assert out[request.rid].token_ids == output_alone(tokens, request.max_new_tokens)
        if request.priority + threshold >= highest:
            assert request.preemptions == 0
