"""Of requests that share a new prefix one is computed, and the others find it cached."""

from __future__ import annotations

import pytest

from phloem.mem_pool import CacheManager, NoPrefixTree, RowTable, TokenAllocator
from phloem.scheduler import SamplingParams, Scheduler, SchedulerConfig, ScriptedRowError, Status

STEM = [1 + i % 40 for i in range(60)]


def add_sharers(h, n, stem=STEM, **params):
    return [h.add(f"r{i}", [*stem, 41 + i % 8], max_new_tokens=4, **params) for i in range(n)]


def cached(h):
    return [ended.last.cached_tokens for ended in h.run().values()]


@pytest.mark.parametrize("policy", ["fcfs", "lpm", "dfs-weight"])
def test_the_first_computes_the_prefix_and_the_others_hit(harness, overlap, policy):
    h = harness(capacity=2000, overlap=overlap, schedule_policy=policy)
    add_sharers(h, 5)
    assert cached(h) == [0, 60, 60, 60, 60]


def test_they_are_let_in_as_soon_as_it_is_cached_and_together(harness):
    h = harness(capacity=2000)
    requests = add_sharers(h, 5)
    h.step()
    assert [r.status for r in requests] == [Status.RUNNING] + [Status.WAITING] * 4
    h.step()
    assert [r.status for r in requests] == [Status.RUNNING] * 5


def test_one_that_is_computed_in_chunks_is_waited_for_to_its_end(harness, overlap):
    h = harness(capacity=2000, overlap=overlap, chunked_prefill_size=16, in_batch_shared_tokens=8)
    add_sharers(h, 3)
    assert cached(h) == [0, 60, 60]


def test_others_go_on_meanwhile(harness):
    h = harness(capacity=2000)
    add_sharers(h, 2)
    other = h.add("other", [45] * 40, max_new_tokens=2)
    h.step()
    assert other.status is Status.RUNNING
    h.run()


def test_who_was_held_back_keeps_its_place(harness, never_ends):
    h = harness(capacity=2000, max_running_requests=2, script=never_ends)
    first, second = add_sharers(h, 2)
    third, fourth = (h.add(f"o{i}", [44 + i] * 40, max_new_tokens=2) for i in range(2))
    h.step()
    assert (first.status, second.status) == (Status.RUNNING, Status.WAITING)
    assert (third.status, fourth.status) == (Status.RUNNING, Status.WAITING)
    h.step_until(lambda: second.status is not Status.WAITING)
    assert fourth.status is Status.WAITING
    h.run()


@pytest.mark.parametrize(
    ("shared", "together"),
    [(31, True), (32, False), (40, False)],
)
def test_for_less_than_the_threshold_nobody_waits(harness, shared, together):
    h = harness(capacity=2000)
    requests = add_sharers(h, 2, STEM[:shared])
    h.step()
    assert all(r.status is Status.RUNNING for r in requests) == together
    h.run()


def test_only_what_is_not_cached_counts_for_the_threshold(harness):
    h = harness(capacity=2000)
    h.add("warm", [*STEM[:30], 49], max_new_tokens=1)
    h.run()
    requests = add_sharers(h, 2, STEM[:61])  # 30 of 60 are new
    h.step()
    assert all(r.status is Status.RUNNING for r in requests)
    h.run()


def test_who_has_enough_cached_does_not_wait_for_more(harness):
    h = harness(capacity=2000, in_batch_check_tokens=8)
    h.add("warm", [*STEM[:10], 49], max_new_tokens=1)
    h.run()
    requests = add_sharers(h, 2)
    h.step()
    assert all(r.status is Status.RUNNING for r in requests)
    h.run()


@pytest.mark.parametrize("page_size", [16, 64])
def test_a_partial_page_is_not_waited_for(harness, page_size):
    h = harness(capacity=2048, page_size=page_size)
    requests = [h.add(rid, [*STEM[:47], 1], max_new_tokens=2) for rid in "ab"]
    h.step()
    # Of 48 equal tokens 47 could be reused: two pages of 16, none of 64.
    assert all(r.status is Status.RUNNING for r in requests) == (page_size == 64)
    h.run()


def test_other_namespaces_share_nothing(harness):
    h = harness(capacity=2000)
    requests = [h.add(n, STEM, (n,), max_new_tokens=2) for n in "ab"]
    h.step()
    assert all(r.status is Status.RUNNING for r in requests)
    h.run()


def test_whose_prompt_is_scored_from_the_start_does_not_wait(harness):
    h = harness(capacity=2000)
    requests = [h.add(rid, STEM, max_new_tokens=2, prompt_logprobs_from=0) for rid in "ab"]
    h.step()
    assert all(r.status is Status.RUNNING for r in requests)
    h.run()


def test_its_prefix_is_waited_for_all_the_same(harness):
    h = harness(capacity=2000)
    for i in range(2):
        h.add(f"other{i}", [44 + i] * 40, max_new_tokens=2)
    h.add("scored", STEM, max_new_tokens=2, prompt_logprobs_from=0)
    plain = h.add("plain", STEM, max_new_tokens=2)
    h.step()
    assert plain.status is Status.WAITING
    assert h.run()["plain"].last.cached_tokens == 59


def test_it_can_be_switched_off(harness):
    h = harness(capacity=2000, in_batch_shared_tokens=0)
    requests = add_sharers(h, 3)
    h.step()
    assert all(r.status is Status.RUNNING for r in requests)
    h.run()


def test_without_a_cache_nobody_waits_for_a_prefix():
    manager = CacheManager(NoPrefixTree(), RowTable(8, 200), TokenAllocator(1000))
    scheduler = Scheduler(SchedulerConfig(200, 50), manager)
    for rid in "abc":
        scheduler.add(rid, STEM, SamplingParams(max_new_tokens=2))
    assert len(scheduler.schedule()) == 3


def test_when_the_one_that_is_waited_for_is_aborted_the_next_goes(harness, overlap):
    h = harness(capacity=2000, overlap=overlap, chunked_prefill_size=16, in_batch_shared_tokens=8)
    add_sharers(h, 3)
    h.step()
    h.scheduler.abort("r0")
    h.run()
    assert [h.outputs[f"r{i}"].finish_reason.type == "abort" for i in range(3)] == [1, 0, 0]
    assert h.outputs["r2"].last.cached_tokens == 60


def test_nobody_is_held_up_by_a_failed_prefill(harness):
    h = harness(capacity=2000)
    add_sharers(h, 3)
    batch = h.scheduler.schedule()
    h.scheduler.launch(batch)
    h.scheduler.process(batch, RuntimeError("out of order"))
    assert h.scheduler.take_outputs()[0].finish_reason.type == "error"
    batch = h.scheduler.schedule()
    assert [row.request.rid for row in batch] == ["r1"]
    h.scheduler.launch(batch)
    h.scheduler.abort("r1")
    h.scheduler.abort("r2")
    h.scheduler.process(batch, RuntimeError("out of order"))
    h.scheduler.take_outputs()
    assert h.scheduler.idle


def test_who_was_held_back_goes_before_one_behind_it_that_waits_for_memory(harness, never_ends):
    """Also where nothing is published and nobody comes: the one that it waited for has failed."""

    def script(history):
        if history[-1] == 41:
            raise ScriptedRowError("not finite")
        return never_ends(history)

    h = harness(capacity=160, script=script)
    h.add("runs", [9] * 20, max_new_tokens=30, ignore_eos=True)
    h.step()
    h.add("first", [*STEM, 41], max_new_tokens=2)
    second = h.add("second", [*STEM, 42], max_new_tokens=2)
    h.add("large", [8] * 120, max_new_tokens=2)
    h.step()
    assert h.outputs["first"].finish_reason.type == "error"
    h.step()
    assert second.status is Status.RUNNING
    h.run()


def test_at_most_so_many_are_looked_at_in_one_pass(harness):
    h = harness(capacity=60_000, max_running_requests=512, context_len=100)
    add_sharers(h, 8)
    for i in range(300):
        h.add(f"s{i}", [*STEM, 30], max_new_tokens=1)
    other = h.add("other", [45] * 40, max_new_tokens=1)
    h.step()
    assert other.status is Status.WAITING
    assert len(h.runner.steps[0].rows) == 1
    h.run()
