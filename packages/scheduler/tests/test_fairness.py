"""Tenants are served alike, whatever each of them sends."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from phloem.scheduler import Request, SamplingParams, Status
from phloem.scheduler.fairness import OUTPUT_WEIGHT, FairShare


def request(rid, prompt=10):
    return Request(rid, np.ones(prompt, np.int32), SamplingParams(), 1, 0, 0.0, tenant=rid[0])


def take(fair, order, n, computed=10):
    """Let `n` of the queue in; their ids."""
    taken = []
    for each in fair.turns(list(order)):
        if len(taken) == n:
            break
        taken.append(each.rid)
        order.remove(each)
        fair.let_in(each, computed)
    return taken


@pytest.fixture
def fair():
    return FairShare(list)


def test_tenants_take_turns_and_each_keeps_the_order_of_the_policy(fair):
    order = [request(rid) for rid in ("a1", "a2", "a3", "b1", "b2", "c1")]
    assert take(fair, order, 6) == ["a1", "b1", "c1", "a2", "b2", "a3"]


def test_who_costs_more_has_fewer_turns(fair):
    order = [request(f"a{i}") for i in range(4)] + [request(f"b{i}") for i in range(4)]
    costs = {"a": 30, "b": 10}
    turns = []
    for each in fair.turns(order):
        turns.append(each.tenant)
        fair.let_in(each, costs[each.tenant])
    assert "".join(turns) == "abbbabaa"


def test_who_is_passed_over_loses_only_that_turn(fair):
    order = [request(rid) for rid in ("a1", "a2", "b1")]
    turns = fair.turns(order)
    assert next(turns).rid == "a1"  # held back: nothing is charged
    assert [each.rid for each in turns] == ["a2", "b1"]


def test_output_counts_as_it_comes(fair):
    running = request("a1")
    fair = FairShare(lambda: [running])
    fair.let_in(running, 4)
    for _ in range(5):
        running.append(1)
    order = [request("a2"), request("b1")]
    assert take(fair, order, 2) == ["b1", "a2"]
    running.append(1)
    fair.charge_output(running)
    fair.charge_output(running)
    assert fair.served("a") == 4 + 6 * OUTPUT_WEIGHT + 10


def test_nobody_saves_up_turns_by_being_away(fair):
    order = [request(f"a{i}") for i in range(50)]
    take(fair, order, 40)
    order += [request(f"b{i}") for i in range(10)]
    assert take(fair, order, 8).count("a0") == 0
    assert fair.served("a") - fair.served("b") <= 10


def test_who_comes_back_starts_where_those_who_stayed_are(fair):
    order = [request(f"a{i}") for i in range(50)]
    order.append(request("b0"))
    take(fair, order, 2)
    take(fair, order, 40)
    order += [request(f"b{i}") for i in range(1, 9)]
    assert sum(rid[0] == "b" for rid in take(fair, order, 8)) == 4


def test_those_who_were_retracted_keep_their_order(fair):
    order = [request(rid) for rid in ("a1", "a2", "b1")]
    for each in order:
        fair.let_in(each, 10)
    assert [each.rid for each in fair.turns(order)] == ["a1", "a2", "b1"]


def test_a_retracted_request_goes_first_and_is_not_charged_for_its_prompt_again(fair):
    back = request("a1")
    fair.let_in(back, 10)
    order = [back, request("b1")]
    assert take(fair, order, 2) == ["a1", "b1"]
    assert fair.served("a") == 10


def test_tenants_that_are_gone_are_forgotten_once_they_have_no_debt(fair):
    for i in range(3000):
        order = [Request(f"r{i}", np.ones(3, np.int32), SamplingParams(), 1, 0, 0.0, tenant=i)]
        order.append(request("a"))
        take(fair, order, 2)
    assert len(fair._counters) < 2000


def test_one_heavy_tenant_cannot_starve_another(harness, overlap):
    h = harness(enable_tenant_fairness=True, max_running_requests=2, overlap=overlap)
    for i in range(40):
        h.add(f"heavy{i}", [1 + i] * 20, max_new_tokens=10, tenant="heavy")
    for _ in range(30):
        h.step()
    waiting = h.scheduler.num_waiting
    light = h.add("light", [45] * 20, max_new_tokens=10, tenant="light")
    h.step_until(lambda: light.status is not Status.WAITING)
    assert h.scheduler.num_waiting >= waiting - 1, "at most one got in before it"
    h.run()


def test_a_tenant_is_told_by_its_namespace_unless_it_is_named(harness):
    h = harness(enable_tenant_fairness=True)
    assert h.add("a", [1, 2], ("x",)).tenant == ("x",)
    assert h.add("b", [1, 2], ("x",), tenant="t").tenant == "t"
    h.run()


def test_between_priorities_there_are_no_turns(harness):
    h = harness(enable_tenant_fairness=True, schedule_policy="priority", max_running_requests=1)
    for i, (tenant, priority) in enumerate([("a", 1), ("a", 1), ("b", 0), ("b", 1), ("a", 0)]):
        h.add(f"r{i}", [1 + i] * 9, max_new_tokens=1, tenant=tenant, priority=priority)
    ends = []
    while not h.loop.idle:
        ends += [o.rid for o in h.step() if o.finish_reason]
    assert ends == ["r0", "r3", "r1", "r2", "r4"]


REQUESTS = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 12)), min_size=12, max_size=24)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    heavy=REQUESTS,
    light=REQUESTS,
    policy=st.sampled_from(["fcfs", "lpm", "random", "shortest-prefill-first"]),
    running=st.integers(1, 5),
    overlap=st.booleans(),
    mixed=st.booleans(),
)
def test_what_two_busy_tenants_get_differs_by_no_more_than_the_bound(
    harness, heavy, light, policy, running, overlap, mixed
):
    h = harness(
        enable_tenant_fairness=True,
        schedule_policy=policy,
        max_running_requests=running,
        capacity=2000,
        overlap=overlap,
        enable_mixed_chunk=mixed,
        chunked_prefill_size=32,
        context_len=60,
    )
    requests = {"heavy": [], "light": []}
    for tenant, sizes in (("heavy", heavy), ("light", light)):
        for i, (prompt, new) in enumerate(sizes):
            tokens = [1 + (7 * i + k * (1 + i % 3)) % 40 for k in range(prompt)]
            added = h.add(f"{tenant}{i}", tokens, max_new_tokens=new, tenant=tenant)
            requests[tenant].append(added)

    def served(tenant):
        return sum(
            r.num_prompt - r.cached_tokens + OUTPUT_WEIGHT * r.num_output
            for r in requests[tenant]
            if r.cached_tokens is not None
        )

    longest = max(prompt for prompt, _ in heavy + light)
    output = running * max(new for _, new in heavy + light)
    while all(any(r.status is Status.WAITING for r in rs) for rs in requests.values()):
        h.step()
        assert abs(served("heavy") - served("light")) <= longest + OUTPUT_WEIGHT * output
    h.run()
