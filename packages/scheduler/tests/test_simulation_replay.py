"""Replays: what a simulation says, and that taking steps together changes nothing of it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phloem.scheduler import policy_names
from phloem.scheduler.simulation import (
    PRESETS,
    CostModel,
    Fleet,
    Setup,
    Trace,
    TracedRequest,
    bundled_trace,
    router_names,
    simulate,
)

COST = CostModel(0.01, 1e-4, 1e-7, 1e-3, 1e-5)
BY_INDEX = (
    *("arrived", "admitted", "first_token", "finished"),
    *("produced", "cached", "retractions", "refused", "failed"),
)


def requests(*made):
    """A trace of (arrival, prompt tokens, output tokens), each prompt of a group of its own."""
    return Trace(
        "test",
        [TracedRequest(at, ((i, prompt),), output) for i, (at, prompt, output) in enumerate(made)],
    )


def replay(trace, every_step=False, cost_model=COST, **setup):
    fleet = Fleet(Setup(cost_model, **setup), trace.longest, every_step)
    records = fleet.run(trace)
    for replica in fleet.replicas:
        replica.manager.check()
        assert replica.manager.available == replica.manager.capacity
    return records


@st.composite
def traces(draw):
    made = []
    for i in range(draw(st.integers(1, 14))):
        runs = draw(
            st.lists(st.tuples(st.integers(0, 3), st.integers(1, 30)), min_size=1, max_size=2)
        )
        output = draw(st.integers(1, 40))
        after = draw(st.none() | st.integers(0, i - 1)) if i else None
        made.append(
            TracedRequest(
                arrival=draw(st.integers(0, 60)) / 32,
                # Few groups, so that prompts share prefixes; the last is the request's own, mostly.
                prompt=(*runs, (draw(st.integers(0, 9)), draw(st.integers(1, 20)))),
                output=output,
                max_tokens=draw(st.none() | st.integers(output, 60)),
                after=after,
                delay=draw(st.sampled_from([0.0, 0.05])) if after is not None else 0.0,
                priority=draw(st.integers(0, 3)),
                tenant=draw(st.sampled_from(["", "a", "b"])),
            )
        )
    return Trace("drawn", made)


SETUPS = st.fixed_dictionaries(
    {
        # In the second, requests come and steps begin at the very same times.
        "cost_model": st.sampled_from([COST, CostModel(1 / 64)]),
        "policy": st.sampled_from(policy_names()),
        "page_size": st.sampled_from([1, 4]),
        "pool_tokens": st.sampled_from([120, 200, 1000]),
        "chunk": st.sampled_from([8, 64, None]),
        "max_running": st.sampled_from([2, 8]),
        "replicas": st.sampled_from([1, 3]),
        "router": st.sampled_from(router_names()),
        "mixed": st.booleans(),
        "more": st.sampled_from(
            [
                {},
                {"enable_priority_scheduling": True, "priority_preemption_threshold": 1},
                {"request_timeout": 0.4, "max_queued_requests": 3},
                {"enable_tenant_fairness": True},
            ]
        ),
    }
)


@settings(max_examples=100, deadline=None)
@given(traces(), SETUPS)
def test_steps_taken_together_come_out_as_single_ones_to_the_last_bit(trace, setup):
    together, singly = replay(trace, **setup), replay(trace, every_step=True, **setup)
    for name in BY_INDEX:
        assert np.array_equal(getattr(together, name), getattr(singly, name), equal_nan=True), name
    assert np.array_equal(together.itl.counts, singly.itl.counts)
    assert together.counters == singly.counters


@settings(max_examples=60, deadline=None)
@given(traces(), SETUPS)
def test_every_request_ends_with_its_output_or_is_refused_or_fails(trace, setup):
    records = replay(trace, **setup)
    for i, request in enumerate(trace.requests):
        if records.refused[i]:
            assert records.produced[i] == 0
        elif not records.failed[i]:
            assert records.produced[i] == request.output
            times = records.arrived[i], records.admitted[i], records.first_token[i]
            assert list(times) == sorted(times)
            assert records.first_token[i] <= records.finished[i]
        if request.after is not None:
            before = records.finished[request.after]
            assert np.isnan(before) or records.arrived[i] >= before + request.delay


def test_the_times_of_a_lone_request_are_those_of_the_cost_model():
    outcome = simulate(requests((1.0, 10, 4)), Setup(COST))
    prefill = 0.01 + 10 * 1e-4 + 55 * 1e-7
    decodes = [0.01 + 1e-3 + (10 + i) * 1e-5 for i in (1, 2, 3)]
    figures = outcome.figures
    assert figures.ttft_p50_s == pytest.approx(prefill)
    assert figures.e2e_p50_s == figures.duration_s == pytest.approx(prefill + sum(decodes))
    assert figures.itl_p50_s == pytest.approx(decodes[1], rel=0.01)
    assert figures.queue_p50_s == 0
    assert (figures.steps, figures.peak_running) == (4, 1)
    assert figures.output_tokens_per_s == pytest.approx(4 / figures.duration_s)
    assert figures.busy_share == pytest.approx(1)


def test_overhead_of_a_request_counts_to_its_latency_and_delays_no_step():
    trace = requests((0, 10, 4), (0, 10, 4))
    plain = simulate(trace, Setup(COST)).figures
    slow = simulate(trace, Setup(CostModel(**{**COST.as_dict(), "request": 0.5}))).figures
    assert slow.ttft_p99_s == pytest.approx(plain.ttft_p99_s + 0.5)
    assert slow.e2e_p50_s == pytest.approx(plain.e2e_p50_s + 0.5)
    assert (slow.duration_s, slow.itl_p99_s) == (plain.duration_s, plain.itl_p99_s)


def test_a_request_that_comes_while_a_step_runs_waits_for_its_end():
    records = replay(requests((0, 10, 100), (0.5, 10, 1)))
    assert records.arrived[1] == 0.5
    assert 0.5 < records.admitted[1] < 0.5 + 0.0125
    assert records.first_token[1] > records.admitted[1]


def test_what_can_never_fit_is_refused_and_the_others_go_on():
    figures = simulate(requests((0, 500, 4), (0, 10, 4)), Setup(COST, pool_tokens=100)).figures
    assert (figures.refused, figures.failed, figures.output_tokens) == (1, 0, 4)


def test_too_many_outputs_at_once_are_retracted_and_come_to_their_end():
    made = [TracedRequest(0.0, ((i, 8),), 60, max_tokens=100) for i in range(8)]
    setup = Setup(COST, pool_tokens=260, more={"schedule_conservativeness": 0.1})
    figures = simulate(Trace("long", made), setup).figures
    assert figures.retractions > 0
    assert (figures.failed, figures.output_tokens) == (0, 8 * 60)


def test_priorities_of_a_trace_count_where_they_are_asked_for():
    made = [TracedRequest(i / 100, ((i, 8),), 20, priority=i) for i in range(3)]
    order = {
        policy: np.argsort(replay(Trace("urgent", made), policy=policy, max_running=1).admitted)
        for policy in ("fcfs", "priority")
    }
    assert order["fcfs"].tolist() == [0, 1, 2]
    assert order["priority"].tolist() == [0, 2, 1]


def test_a_full_queue_refuses_and_a_time_limit_ends():
    trace = requests(*((0.0, 8, 50) for _ in range(4)))
    full = replay(trace, max_running=1, more={"max_queued_requests": 2})
    assert full.refused.tolist() == [False, False, True, True]
    late = replay(trace, more={"request_timeout": 0.3})
    assert late.failed.all()
    assert (late.finished < 0.4).all()


def test_a_next_turn_finds_the_answer_before_it():
    made = [TracedRequest(0.0, ((7, 64),), 32), TracedRequest(0.0, ((7, 160),), 32, after=0)]
    records = replay(Trace("turns", made))
    # Of the answer's last token there is no KV.
    assert records.cached.tolist() == [0, 64 + 32 - 1]


# The load generator's workloads: everything is cached the second time.


@pytest.mark.parametrize("name", ["w3", "w4"])
@pytest.mark.parametrize("policy", policy_names())
def test_a_workload_that_is_run_again_finds_what_it_left(name, policy):
    setup = Setup(COST, policy)
    warm = simulate(bundled_trace(name), setup, warm=True).figures
    assert warm.cached_share > 0.94
    cold = simulate(bundled_trace(name), setup).figures
    assert cold.cached_share < warm.cached_share
    assert cold.requests == warm.requests


def test_longest_prefix_first_finds_more_in_half_of_the_pool_at_no_worse_latency():
    """Aging is on. The prefixes alone take 64 x 1024 tokens."""
    trace = bundled_trace("shared-prefix:requests=1500,rate=34")
    fcfs, lpm = (
        simulate(trace, Setup(PRESETS["h100-8b"], policy, pool_tokens=32 * 1024)).figures
        for policy in ("fcfs", "lpm")
    )
    assert lpm.cached_share > fcfs.cached_share + 0.02
    assert lpm.ttft_p99_s < fcfs.ttft_p99_s


# Routers.


def test_round_robin_gives_each_replica_as_many():
    trace = requests(*((0.0, 10, 5) for _ in range(8)))
    one, four = (replay(trace, replicas=n) for n in (1, 4))
    assert four.counters.peak_running == 2
    assert np.nanmax(four.finished) < np.nanmax(one.finished)


def test_least_load_spares_the_replica_that_is_busy():
    # The third one goes to the replica whose request has ended.
    trace = requests((0, 10, 100), (0, 10, 2), (0.5, 10, 2), (0.5, 10, 100))
    even = replay(trace, replicas=2, router="least-load")
    turns = replay(trace, replicas=2, router="round-robin")
    assert even.first_token[2] < turns.first_token[2]


def test_a_cache_aware_router_finds_more_than_one_that_takes_turns():
    trace = bundled_trace("multi-turn:requests=300,rate=20")
    shares = {
        router: simulate(trace, Setup(COST, replicas=4, router=router)).figures.cached_share
        for router in ("round-robin", "cache-aware")
    }
    assert shares["cache-aware"] > shares["round-robin"] + 0.1


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"router": "best"}, "router 'best' is unknown"),
        ({"replicas": 0}, "replicas is 0"),
        ({"more": {"ageing": 1}}, "'ageing' is no setting of the scheduler"),
        ({"more": {"vocab_size": 1}}, "'vocab_size' is no setting"),
    ],
)
def test_a_setup_that_cannot_be_is_refused(options, says):
    with pytest.raises(ValueError, match=says):
        Setup(COST, **options)


def test_a_policy_that_there_is_not_is_refused():
    with pytest.raises(ValueError, match="schedule_policy 'best' is unknown"):
        simulate(requests((0, 1, 1)), Setup(COST, "best"))
