"""In which order waiting requests are admitted."""

from __future__ import annotations

import math

import numpy as np
import pytest

from phloem.scheduler import Request, SamplingParams, SchedulerConfig, create_policy


def request(rid, passes=0):
    made = Request(rid, np.array([1], np.int32), SamplingParams(), 1, 0, 0.0)
    made.passes_waited = passes
    return made


def policy(name, **config):
    return create_policy(SchedulerConfig(100, 100, schedule_policy=name, **config))


def test_fcfs_keeps_the_order_of_arrival():
    waiting = [request("a"), request("b")]
    assert list(policy("fcfs").order(waiting, lambda r: 9)) == waiting


def test_lpm_takes_the_longest_cached_prefix_first_and_ties_as_they_came():
    cached = {"a": 0, "b": 50, "c": 0, "d": 90}
    order = policy("lpm").order([request(r) for r in "abcd"], lambda r: cached[r.rid])
    assert [r.rid for r in order] == ["d", "b", "a", "c"]


def test_lpm_asks_the_cache_nothing_above_its_limit():
    waiting = [request(str(i)) for i in range(5)]
    assert list(policy("lpm", lpm_fallback_above=4).order(waiting, lambda r: 1 / 0)) == waiting


@pytest.mark.parametrize("aging", [64, 300])
def test_a_cold_request_runs_within_the_stated_number_of_passes(aging):
    """In each pass a new request arrives that matches 1000 tokens, and one is admitted."""
    lpm = policy("lpm", aging_tokens=aging)
    cold = request("cold")
    while lpm.order([cold, request("hot")], lambda r: 1000 if r.rid == "hot" else 0)[0] is not cold:
        cold.passes_waited += 1
        assert cold.passes_waited <= math.ceil(1000 / aging)
    assert cold.passes_waited > 0


def test_an_unknown_policy_is_refused_with_the_known_names():
    with pytest.raises(ValueError, match=r"'best' is unknown: use one of fcfs, lpm"):
        policy("best")


def test_lpm_uses_the_cache_better_than_fcfs_when_prefixes_alternate(harness):
    hits = {}
    for name in ("fcfs", "lpm"):
        h = harness(capacity=40, schedule_policy=name, max_running_requests=1, context_len=60)
        for i in range(8):
            h.add(f"r{i}", [1 + i % 2] * 30 + [10 + i], max_new_tokens=1)
        h.run()
        hits[name] = sum(o.last.cached_tokens for o in h.outputs.values())
    assert hits["lpm"] > hits["fcfs"]
