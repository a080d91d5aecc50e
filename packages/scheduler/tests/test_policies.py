"""In which order waiting requests are admitted."""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phloem.scheduler import Request, SamplingParams, SchedulerConfig, create_policy, policy_names

CONTEXT = 1000


def request(rid, tokens=(1,), new=1, priority=0, namespace=()):
    return Request(
        rid, np.array(tokens, np.int32), SamplingParams(), new, 0, 0.0, namespace, None, priority
    )


@dataclass
class Known:
    """An outlook of which a test says everything."""

    lengths: dict[str, int] = field(default_factory=dict)
    waits: dict[str, int] = field(default_factory=dict)

    def cached(self, request):
        return self.lengths.get(request.rid, 0)

    def waited(self, request):
        return self.waits.get(request.rid, 0)


class Unknown:
    """An outlook that must not be asked."""


def policy(name, **config):
    return create_policy(SchedulerConfig(CONTEXT, 100, schedule_policy=name, **config))


def rids(name, waiting, outlook=None, **config):
    order = policy(name, **config).order(waiting, outlook or Unknown())
    assert sorted(map(id, order)) == sorted(map(id, waiting))
    return "".join(r.rid for r in order)


def test_fcfs_keeps_the_order_of_arrival():
    assert rids("fcfs", [request("a"), request("b")]) == "ab"


def test_lpm_takes_the_longest_cached_prefix_first_and_ties_as_they_came():
    assert rids("lpm", [request(r) for r in "abcd"], Known({"b": 50, "d": 90})) == "dbac"


def test_lof_takes_the_largest_allowed_output_first():
    waiting = [request("a", new=5), request("b", new=9), request("c", new=5)]
    assert rids("lof", waiting, Known()) == "bac"


def test_shortest_prefill_first_takes_the_fewest_tokens_to_compute_first():
    waiting = [request("a", [1] * 9), request("b", [1] * 20), request("c", [1] * 4)]
    assert rids("shortest-prefill-first", waiting, Known({"b": 18})) == "bca"


def test_hrrn_weighs_the_wait_against_the_tokens_to_compute():
    waiting = [request("a", [1] * 40), request("b", [1] * 10), request("c", [1] * 40)]
    assert rids("hrrn", waiting, Known({}, {"a": 9})) == "abc"
    assert rids("hrrn", waiting, Known({}, {"a": 2})) == "bac"
    assert rids("hrrn", waiting, Known({"c": 39}, {"a": 2})) == "cba"


def test_priority_takes_the_most_urgent_first_and_equal_ones_as_they_came():
    waiting = [request(r, priority=p) for r, p in zip("abcd", (0, 5, -1, 5), strict=True)]
    assert rids("priority", waiting) == "bdac"


def test_random_is_a_new_order_each_time_and_the_same_for_the_same_seed():
    waiting = [request(r) for r in "abcdefgh"]
    drawn = [rids("random", waiting, default_seed=seed) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    one = policy("random")
    assert len({tuple(r.rid for r in one.order(waiting, Unknown())) for _ in range(20)}) > 1
    firsts = [one.order(waiting, Unknown())[0].rid for _ in range(400)]
    assert all(firsts.count(r) > 20 for r in "abcdefgh")


@pytest.mark.parametrize("name", ["hrrn", "dfs-weight"])
def test_who_has_waited_for_as_long_as_a_whole_context_goes_first(name):
    waiting = [request("a"), request("b", [1] * 500)]
    known = Known({"a": 1, "b": 0}, {"b": CONTEXT // 100 - 1})
    assert rids(name, waiting, known, aging_tokens=100) == "ab"
    known.waits["b"] += 1
    assert rids(name, waiting, known, aging_tokens=100) == "ba"


class TestDepthFirst:
    def test_walks_the_heaviest_subtree_first_and_what_ends_above_it_last(self):
        stem = [7] * 10
        waiting = [
            request("a", stem),  # ends at the stem
            request("b", [*stem, 1, 1]),
            request("c", [*stem, 2, 2]),
            request("d", [*stem, 2, 3]),
            request("e", [9] * 20),
            request("f", [9] * 5),
            request("g", [3]),  # nothing of it is cached
        ]
        everything = {r.rid: r.num_prompt for r in waiting} | {"g": 0}
        assert rids("dfs-weight", waiting, Known(everything)) == "cdbaefg"

    def test_only_the_cached_part_of_a_prompt_puts_it_somewhere(self):
        waiting = [request("a", [1, 2, 3, 4]), request("b", [5]), request("c", [1, 2, 9, 9])]
        assert rids("dfs-weight", waiting, Known({"a": 4, "b": 1, "c": 2})) == "acb"

    def test_equal_tokens_of_other_namespaces_are_another_tree(self):
        waiting = [request(r, [1, 2], namespace=(n,)) for r, n in zip("abc", "xyy", strict=True)]
        assert rids("dfs-weight", waiting, Known(dict.fromkeys("abc", 2))) == "bca"

    @given(
        st.lists(
            st.lists(st.integers(0, 2), min_size=1, max_size=8),
            max_size=24,
        )
    )
    def test_keeps_together_who_shares_more_with_each_other_than_with_others(self, prompts):
        waiting = [request(f"r{i}", tokens) for i, tokens in enumerate(prompts)]
        known = Known({r.rid: r.num_prompt for r in waiting})
        order = [r.tokens.tolist() for r in policy("dfs-weight").order(waiting, known)]
        assert sorted(order) == sorted(prompts)
        for n in range(1, 9):
            heads = [tuple(tokens[:n]) for tokens in order if len(tokens) >= n]
            runs = [head for i, head in enumerate(heads) if not i or heads[i - 1] != head]
            assert len(runs) == len(set(runs)), f"those with {n} tokens in common are apart"


@pytest.mark.parametrize("name", ["lpm", "dfs-weight", "shortest-prefill-first", "hrrn"])
def test_cache_aware_policies_ask_nothing_above_their_limit_and_keep_the_order(name):
    waiting = [request(str(i)) for i in range(5)]
    assert rids(name, waiting, lpm_fallback_above=4) == "01234"


@pytest.mark.parametrize("aging", [64, 300])
def test_a_cold_request_runs_within_the_stated_number_of_passes(aging):
    """In each pass a new request arrives that matches 1000 tokens, and one is admitted."""
    lpm = policy("lpm", aging_tokens=aging)
    known = Known({"hot": 1000}, {"cold": 0})
    while lpm.order([request("cold"), request("hot")], known)[0].rid != "cold":
        known.waits["cold"] += 1
        assert known.waits["cold"] <= math.ceil(1000 / aging)
    assert known.waits["cold"] > 0


def test_without_aging_a_cold_request_waits_as_long_as_hot_ones_come():
    known = Known({"hot": 1}, {"cold": 10**9})
    order = policy("lpm", aging_tokens=0).order([request("cold"), request("hot")], known)
    assert order[0].rid == "hot"


PASS = st.tuples(
    st.lists(st.integers(0, 60), max_size=6),  # who comes, each with its length
    st.integers(1, 2),  # how many are let in
)


@given(
    name=st.sampled_from(["lpm", "dfs-weight", "lof", "shortest-prefill-first", "hrrn", "fcfs"]),
    passes=st.lists(PASS, min_size=1, max_size=60),
    again=st.integers(1, 8),
    aging=st.integers(5, 40),
    limit=st.integers(1, 12),
)
def test_every_wait_keeps_to_the_bound_of_its_policy(name, passes, again, aging, limit):
    """What is cached changes from pass to pass; all that is asked of it is that it is so long."""
    longest = 60
    config = SchedulerConfig(
        longest, 100, schedule_policy=name, aging_tokens=aging, lpm_fallback_above=limit
    )
    policy, known, waiting = create_policy(config), Known(), []
    grace = math.ceil(longest / aging)
    bounds, came = {}, {}
    number = 0
    for when, (arrivals, admitted) in enumerate(passes * again):
        for rid in bounds:
            if when < came[rid] + grace:
                bounds[rid][1] += len(arrivals)  # they may still overtake it
        for length in arrivals:
            rid = f"r{number}"
            number += 1
            waiting.append(request(rid, [1 + length % 3] * max(length, 1), new=length))
            bounds[rid], came[rid] = [len(waiting) - 1, len(arrivals) - 1], when
        for r in waiting:
            known.waits[r.rid] = when - came[r.rid]
            most = min(r.num_prompt, longest)
            known.lengths[r.rid] = (
                (zlib.crc32(f"{r.rid} {when}".encode()) % (most + 1)) if most else 0
            )
        order = policy.order(waiting, known)
        for r in order[:admitted]:
            waiting.remove(r)
            before, later = bounds.pop(r.rid)
            waited = when - came[r.rid]
            if name == "fcfs":
                assert waited <= before
            elif name in ("dfs-weight", "hrrn"):
                assert waited <= grace + before
            else:
                assert waited <= grace + before + later
                if name != "lof":
                    assert waited <= grace + before + limit


def test_an_unknown_policy_is_refused_with_the_known_names():
    with pytest.raises(ValueError, match=r"'best' is unknown: use one of fcfs, lpm, dfs-weight"):
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


@pytest.mark.parametrize("name", policy_names())
def test_under_every_policy_all_requests_get_what_they_get_alone(
    harness, output_alone, overlap, name
):
    h = harness(capacity=150, schedule_policy=name, max_running_requests=3, overlap=overlap)
    prompts = {f"r{i}": [1 + i % 3] * (5 + 7 * (i % 4)) + [20 + i] for i in range(16)}
    for i, (rid, prompt) in enumerate(prompts.items()):
        h.add(rid, prompt, max_new_tokens=4 + i % 5)
        if i % 5 == 4:
            h.step()
    out = h.run()
    for i, (rid, prompt) in enumerate(prompts.items()):
        assert out[rid].token_ids == output_alone(prompt, 4 + i % 5)
