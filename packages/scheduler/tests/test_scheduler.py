"""Requests through the whole scheduler: what they get, what the cache gives them, and aborts."""

from __future__ import annotations

import numpy as np
import pytest

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3]


def test_a_request_gets_what_the_script_says(harness, output_alone, overlap):
    h = harness(overlap=overlap)
    h.add("a", PROMPT, max_new_tokens=20)
    assert h.run()["a"].token_ids == output_alone(PROMPT, 20)


@pytest.mark.parametrize("chunk", [None, 4, 16])
@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("mixed", [False, True])
def test_many_requests_get_what_each_gets_alone(
    harness, output_alone, overlap, chunk, page_size, mixed
):
    h = harness(
        overlap=overlap, chunked_prefill_size=chunk, page_size=page_size, enable_mixed_chunk=mixed
    )
    prompts = {f"r{i}": [1 + (i * j) % 40 for j in range(1, 5 + 3 * i)] for i in range(9)}
    for rid, prompt in prompts.items():
        h.add(rid, prompt, max_new_tokens=15)
        h.step()
    outputs = h.run()
    for rid, prompt in prompts.items():
        assert outputs[rid].token_ids == output_alone(prompt, 15), rid


def test_no_new_tokens_is_a_prefill_alone(harness, overlap):
    h = harness(overlap=overlap)
    h.add("a", PROMPT, max_new_tokens=0)
    out = h.run()["a"]
    assert (out.token_ids, out.finish_reason.type) == ([], "length")
    assert len(h.runner.steps) == 1


def test_a_second_equal_prompt_finds_the_first_one_cached(harness, overlap):
    h = harness(overlap=overlap)
    h.add("cold", PROMPT, max_new_tokens=2)
    h.run()
    h.add("warm", PROMPT, max_new_tokens=2)
    h.run()
    assert h.outputs["cold"].last.cached_tokens == 0
    assert h.outputs["warm"].last.cached_tokens == len(PROMPT) - 1
    assert h.outputs["warm"].token_ids == h.outputs["cold"].token_ids


def test_another_namespace_finds_nothing(harness):
    h = harness()
    h.add("a", PROMPT, max_new_tokens=2, namespace=("tenant", 1))
    h.run()
    h.add("b", PROMPT, max_new_tokens=2, namespace=("tenant", 2))
    h.run()
    assert h.outputs["b"].last.cached_tokens == 0


def test_two_equal_prompts_in_one_batch_end_with_equal_rows(harness, overlap, never_ends):
    h = harness(overlap=overlap, script=never_ends)
    a = h.add("a", PROMPT, max_new_tokens=30)
    b = h.add("b", PROMPT, max_new_tokens=30)
    h.step()
    assert len(h.runner.steps) == 1 or h.loop._in_flight is not None
    h.step()
    table = h.manager.rows.table
    n = len(PROMPT)
    assert a.lease.row != b.lease.row
    assert np.array_equal(table[a.lease.row, :n], table[b.lease.row, :n])
    out = h.run()
    assert out["a"].token_ids == out["b"].token_ids


def test_equal_seeds_draw_equal_tokens_alone_and_in_company(harness, overlap):
    def script(history):
        return dict.fromkeys(range(1, 30), 1.0)

    h = harness(overlap=overlap, script=script)
    h.add("alone", PROMPT, max_new_tokens=10, temperature=1.0, seed=7)
    h.run()
    for i in range(5):
        h.add(f"other{i}", [i + 1] * 9, max_new_tokens=6, temperature=1.0)
    h.add("crowd", PROMPT, max_new_tokens=10, temperature=1.0, seed=7)
    out = h.run()
    assert out["crowd"].token_ids == out["alone"].token_ids
    assert len({tuple(out[f"other{i}"].token_ids) for i in range(5)}) == 5


def test_a_seed_gives_the_same_output_each_time_beside_a_request_without_one(harness, overlap):
    def script(history):
        return dict.fromkeys(range(1, 30), 1.0)

    def seeded(h, rid):
        h.add(rid, PROMPT, max_new_tokens=10, temperature=0.8, seed=42)

    h = harness(overlap=overlap, script=script)
    for i in range(4):
        seeded(h, f"seeded{i}")
        h.add(f"unseeded{i}", PROMPT, max_new_tokens=10, temperature=0.8)
        h.run()
    alone = harness(overlap=overlap, script=script)
    seeded(alone, "alone")
    expected = alone.run()["alone"].token_ids
    assert [h.outputs[f"seeded{i}"].token_ids for i in range(4)] == [expected] * 4
    assert len({tuple(h.outputs[f"unseeded{i}"].token_ids) for i in range(4)}) == 4


def test_timings_follow_the_clock(harness, never_ends):
    h = harness(max_running_requests=1, script=never_ends)
    h.add("a", PROMPT, max_new_tokens=3)
    h.add("b", PROMPT, max_new_tokens=3)
    out = h.run()
    assert out["a"].last.timings.admitted == 1.0
    assert out["a"].last.timings.finished == 3.0
    b = out["b"].last.timings
    assert (b.arrived, b.admitted, b.first_token, b.finished) == (0.0, 4.0, 4.0, 6.0)


class TestAbort:
    def test_of_a_waiting_request(self, harness, overlap):
        h = harness(overlap=overlap, max_running_requests=1)
        h.add("a", PROMPT, max_new_tokens=5)
        h.add("b", PROMPT, max_new_tokens=5)
        h.step()
        assert h.scheduler.abort("b")
        reason = h.run()["b"].finish_reason
        assert (reason.type, reason.message) == ("abort", "the request was aborted")

    def test_in_mid_prompt_and_while_running(self, harness, overlap, never_ends):
        for steps in range(7):
            h = harness(overlap=overlap, chunked_prefill_size=4, script=never_ends)
            h.add("a", PROMPT, max_new_tokens=50)
            for _ in range(steps):
                h.step()
            assert h.scheduler.abort("a")
            reason = h.run()["a"].finish_reason
            assert (reason.type, reason.message) == ("abort", "the request was aborted")

    def test_of_an_ended_or_unknown_id_does_nothing(self, harness, overlap):
        h = harness(overlap=overlap)
        h.add("a", PROMPT, max_new_tokens=1)
        h.run()
        assert not h.scheduler.abort("a")
        assert not h.scheduler.abort("never")
        assert not h.scheduler.abort("a")

    def test_twice_reports_once(self, harness, overlap, never_ends):
        h = harness(overlap=overlap, script=never_ends)
        h.add("a", PROMPT, max_new_tokens=50)
        h.step()
        assert h.scheduler.abort("a")
        assert not h.scheduler.abort("a")
        h.run()

    def test_frees_nothing_under_a_step_in_flight(self, harness, never_ends):
        h = harness(overlap=True, script=never_ends)
        request = h.add("a", PROMPT, max_new_tokens=50)
        h.step()
        h.step()
        assert request.in_flight
        h.scheduler.abort("a")
        assert h.manager.open_leases
        h.run()
