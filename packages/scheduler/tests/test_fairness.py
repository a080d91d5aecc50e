"""Tenants are served alike, whatever each of them sends."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

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
    runs = []
    fair = FairShare(lambda: runs)
    order = [running, request("a2"), request("b1")]
    take(fair, order, 1, computed=4)
    runs.append(running)
    for _ in range(5):
        running.append(1)
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


def one_off(tenant, prompt=3):
    return Request(
        f"r{tenant}", np.ones(prompt, np.int32), SamplingParams(), 1, 0, 0.0, tenant=tenant
    )


def test_who_was_alone_is_not_behind_a_newcomer(fair):
    for i in range(60):
        take(fair, [request(f"a{i}")], 1)
        take(fair, [one_off(i)], 1, computed=3)
    order = [request(f"{tenant}{i}") for i in range(20) for tenant in "ac"]
    turns = take(fair, order, 12)
    assert sum(rid[0] == "c" for rid in turns) in (6, 7)


def test_a_newcomer_starts_where_he_was_who_was_let_in_last_if_nobody_else_waits(fair):
    take(fair, [request("a1")], 1, computed=100)
    take(fair, [request("c1")], 1, computed=7)
    assert fair.served("c") == 107
    take(fair, [request("b1")], 0)
    assert fair.served("b") == 107


def test_who_was_let_in_has_not_waited_since_even_if_the_next_look_finds_him_again(fair):
    take(fair, [request("z1")], 1, computed=1)
    order = [request("a1"), request("b1")]
    assert take(fair, order, 1, computed=100) == ["a1"]
    assert take(fair, order, 1, computed=50) == ["b1"]  # from 1 to 51
    assert take(fair, [request("b2"), request("c1")], 0) == []
    assert (fair.served("b"), fair.served("c")) == (51, 51)
    take(fair, [request("a2")], 1, computed=1000)
    take(fair, [request("b3"), request("d1")], 0)
    assert fair.served("d") == 1101


def test_who_is_passed_over_keeps_what_he_is_owed_but_newcomers_start_where_turns_are(fair):
    owed = request("o1")
    for i in range(20):
        order = [owed, request(f"a{i}"), request(f"b{i}")]
        for each in fair.turns(order):
            if each is not owed:
                fair.let_in(each, 10)
    take(fair, [owed, request("c1")], 0)
    assert fair.served("o") == 0
    assert fair.served("c") >= fair.served("a") - 10


@pytest.mark.parametrize("busy", [False, True])
def test_tenants_that_are_gone_are_forgotten_once_they_have_no_debt(fair, busy):
    for i in range(5000):
        take(fair, [one_off(i), *([request("a")] if busy else [])], 2)
    assert len(fair._counters) <= 2 * 1024 + 3


def test_a_tenant_with_a_debt_is_remembered_and_those_without_are_not(fair):
    order = [one_off("debtor"), *(request("a") for _ in range(2501))]
    take(fair, order, 1, computed=10**6)
    for i in range(2500):
        order.append(one_off(i))
        take(fair, order, 2)
    assert len(fair._counters) < 2400, "some were forgotten"
    assert fair.served("debtor") == 10**6


def test_of_more_debts_than_are_remembered_the_oldest_are_forgotten(fair):
    stuck = request("a1")
    for i in range(5000):
        for each in fair.turns([stuck, one_off(i)]):
            if each is not stuck:
                fair.let_in(each, 5000 - i)
    assert len(fair._counters) <= 2 * 1024 + 3
    assert fair.served(4000) > fair.served(0)
    assert fair.served("a") == 0, "who waits is never forgotten"


def test_who_waits_is_not_forgotten_while_others_come_and_go(fair):
    owed = request("o1")
    for i in range(3000):
        for each in fair.turns([owed, request("b1"), one_off(i)]):
            if each is not owed:
                fair.let_in(each, 10)
    assert len(fair._counters) < 3000
    assert fair.served("o") == 0 < fair.served("someone new")


def test_who_left_the_queue_before_others_is_a_newcomer_at_the_next_look(fair):
    costs = {"a": 3, "b": 100}
    for each in fair.turns([request("a1"), request("b1")]):
        fair.let_in(each, costs[each.tenant])
    take(fair, [request("a2"), request("c1")], 0)
    assert fair.served("a") == fair.served("c") == 100


def test_who_runs_is_not_forgotten_while_others_come_and_go():
    running = request("r1")
    fair = FairShare(lambda: [running])
    fair.let_in(running, 10)
    for i in range(5000):
        take(fair, [one_off(i)], 1, computed=100)
    assert fair._counters["r"] == 10


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


class Server:
    """Lets requests in by turns, and gives each that runs a token in each step."""

    def __init__(self, places):
        self.places = places
        self.waiting, self.running = [], []
        self.fair = FairShare(lambda: self.running)
        self.served = Counter()

    def add(self, tenant, prompt, new):
        prompt_ids = np.ones(prompt, np.int32)
        self.waiting.append(Request("r", prompt_ids, SamplingParams(), new, 0, 0.0, tenant=tenant))

    def step(self):
        for each in list(self.running):
            each.append(1)
            self.served[each.tenant] += OUTPUT_WEIGHT
            if each.num_output == each.max_new_tokens:
                self.running.remove(each)
                self.fair.charge_output(each)
        if self.waiting and len(self.running) < self.places:
            for each in self.fair.turns(list(self.waiting)):
                self.fair.let_in(each, each.num_prompt)
                self.served[each.tenant] += each.num_prompt
                self.waiting.remove(each)
                self.running.append(each)
                if len(self.running) == self.places:
                    break


PHASES = st.lists(
    st.tuples(
        st.sampled_from(["alone", "alone, between others", "two"]),
        st.permutations("abc"),
        st.integers(1, 12),
        st.integers(1, 40),
        st.integers(1, 12),
        st.integers(0, 100),
    ),
    min_size=2,
    max_size=8,
)
"""Who comes, how often, with which prompt and output, and how many steps until the next."""


@settings(max_examples=200, deadline=None)
@given(phases=PHASES, places=st.integers(1, 3))
def test_tenants_that_come_go_and_run_alone_get_alike_while_both_wait(phases, places):
    server = Server(places)
    bound = 40 + OUTPUT_WEIGHT * 12 * places
    behind = {}

    def step():
        server.step()
        waiting = sorted({each.tenant for each in server.waiting} & set("abc"))
        pairs = {
            pair: server.served[pair[0]] - server.served[pair[1]]
            for pair in combinations(waiting, 2)
        }
        for pair in behind.keys() - pairs.keys():
            del behind[pair]
        for pair, difference in pairs.items():
            assert abs(difference - behind.setdefault(pair, difference)) <= 2 * bound

    def drain():
        while server.waiting or server.running:
            step()

    for i, (kind, (first, second, _), count, prompt, new, steps) in enumerate(phases):
        for k in range(count):
            server.add(first, prompt, new)
            if kind == "two":
                server.add(second, 41 - prompt, 13 - new)
                continue
            drain()
            if kind == "alone, between others":
                server.add(f"one-off {i} {k}", 1, 1)
                drain()
        for _ in range(steps):
            step()
    drain()
