"""The scheduler, step by step: admission, chunks, ends, aborts, retraction, failures."""

from __future__ import annotations

import numpy as np
import pytest

from phloem.scheduler import ContextLengthError, SamplingParams, ScriptedRowError, Status

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3]


def never_ends(history):
    """A script that goes on for ever."""
    return 1 + int(history.sum()) % 40


@pytest.fixture(params=[False, True], ids=["normal", "overlap"])
def overlap(request):
    return request.param


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


def test_length_and_eos_and_stop_ids_end_a_request(harness, overlap):
    h = harness(overlap=overlap, script=lambda history: len(history) % 50)
    h.add("length", [7] * 10, max_new_tokens=3)
    h.add("eos", [7] * 45, max_new_tokens=20)
    h.add("ignored", [7] * 45, max_new_tokens=9, ignore_eos=True)
    h.add("stop", [7] * 10, max_new_tokens=20, stop_token_ids=(12,))
    out = h.run()
    assert (out["length"].token_ids, out["length"].finish_reason.type) == ([10, 11, 12], "length")
    assert out["eos"].token_ids == [45, 46, 47, 48, 49, 0]
    assert (out["eos"].finish_reason.type, out["eos"].finish_reason.matched) == ("stop", 0)
    assert len(out["ignored"].token_ids) == 9
    assert out["stop"].finish_reason.matched == 12


def test_stop_ids_cannot_come_before_min_new_tokens(harness, overlap):
    h = harness(overlap=overlap, script=lambda history: 0)
    h.add("a", PROMPT, max_new_tokens=10, min_new_tokens=4)
    tokens = h.run()["a"].token_ids
    assert len(tokens) == 5
    assert tokens[-1] == 0
    assert 0 not in tokens[:-1]


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


def test_two_equal_prompts_in_one_batch_end_with_equal_rows(harness, overlap):
    h = harness(overlap=overlap, script=never_ends)
    a = h.add("a", PROMPT, max_new_tokens=30)
    b = h.add("b", PROMPT, max_new_tokens=30)
    h.step()
    assert len(h.runner.steps or h.loop._in_flight) == 1
    h.step()
    table = h.manager.rows.table
    n = len(PROMPT)
    assert a.lease.row != b.lease.row
    assert np.array_equal(table[a.lease.row, :n], table[b.lease.row, :n])
    out = h.run()
    assert out["a"].token_ids == out["b"].token_ids


def test_a_long_prompt_is_cut_into_chunks_that_end_on_pages(harness):
    h = harness(chunked_prefill_size=8, page_size=4)
    h.add("a", list(range(1, 30)), max_new_tokens=1)
    h.run()
    assert [s.query_lens.tolist() for s in h.runner.steps] == [[8], [8], [8], [5]]
    assert [s.samples.tolist() for s in h.runner.steps] == [[False], [False], [False], [True]]


def test_only_one_prompt_is_cut_at_a_time(harness):
    h = harness(chunked_prefill_size=8, script=never_ends)
    for rid in "abc":
        h.add(rid, [ord(rid) % 40] * 20, max_new_tokens=4)
    while not h.loop.idle:
        h.step()
        held = [r.status for r in h.scheduler._active.values()]
        assert held.count(Status.PREFILL) <= 1


def test_mixed_chunks_let_running_requests_go_on(harness):
    h = harness(chunked_prefill_size=8, enable_mixed_chunk=True, script=never_ends)
    h.add("runs", PROMPT[:4], max_new_tokens=30)
    h.step()
    h.add("long", [5] * 40, max_new_tokens=2)
    before = len(h.outputs["runs"].token_ids)
    h.step()
    h.step()
    assert len(h.outputs["runs"].token_ids) == before + 2
    assert h.runner.steps[-1].query_lens.tolist() == [7, 1]


class TestAbort:
    def test_of_a_waiting_request(self, harness, overlap):
        h = harness(overlap=overlap, max_running_requests=1)
        h.add("a", PROMPT, max_new_tokens=5)
        h.add("b", PROMPT, max_new_tokens=5)
        h.step()
        assert h.scheduler.abort("b")
        assert h.run()["b"].finish_reason.type == "abort"

    def test_in_mid_prompt_and_while_running(self, harness, overlap):
        for steps in range(7):
            h = harness(overlap=overlap, chunked_prefill_size=4, script=never_ends)
            h.add("a", PROMPT, max_new_tokens=50)
            for _ in range(steps):
                h.step()
            assert h.scheduler.abort("a")
            out = h.run()["a"]
            assert out.finish_reason.type == "abort"

    def test_of_an_ended_or_unknown_id_does_nothing(self, harness, overlap):
        h = harness(overlap=overlap)
        h.add("a", PROMPT, max_new_tokens=1)
        h.run()
        assert not h.scheduler.abort("a")
        assert not h.scheduler.abort("never")
        assert not h.scheduler.abort("a")

    def test_twice_reports_once(self, harness, overlap):
        h = harness(overlap=overlap, script=never_ends)
        h.add("a", PROMPT, max_new_tokens=50)
        h.step()
        assert h.scheduler.abort("a")
        assert not h.scheduler.abort("a")
        h.run()

    def test_frees_nothing_under_a_step_in_flight(self, harness):
        h = harness(overlap=True, script=never_ends)
        request = h.add("a", PROMPT, max_new_tokens=50)
        h.step()
        h.step()
        assert request.in_flight
        h.scheduler.abort("a")
        assert h.manager.open_leases
        h.run()


class TestMemory:
    def test_a_pool_too_small_for_all_retracts_and_still_answers_all(
        self, harness, output_alone, overlap
    ):
        h = harness(
            overlap=overlap, capacity=70, context_len=60, script=never_ends, clip_max_new_tokens=4
        )
        prompts = {f"r{i}": [i + 1] * 8 for i in range(6)}
        for rid, prompt in prompts.items():
            h.add(rid, prompt, max_new_tokens=25)
        out = h.run()
        assert sum(o.last.retractions for o in out.values()) > 0
        for rid, prompt in prompts.items():
            assert out[rid].token_ids == output_alone(prompt, 25, never_ends)
            assert out[rid].last.cached_tokens == 0

    def test_what_can_never_fit_is_refused_with_both_lengths(self, harness):
        h = harness(capacity=100, context_len=500)
        with pytest.raises(ContextLengthError, match=r"95 tokens.*holds 100"):
            h.add("a", [1] * 95, max_new_tokens=10)
        h2 = harness(capacity=1000, context_len=60)
        with pytest.raises(ContextLengthError, match=r"70 tokens.*context is 60"):
            h2.add("a", [1] * 70)
        assert h.loop.idle
        assert h2.loop.idle

    @pytest.mark.parametrize("page_size", [1, 16, 64])
    def test_whatever_passes_validation_is_admitted(self, harness, page_size):
        capacity = 256
        for prompt in range(1, capacity + 1):
            h = harness(capacity=capacity, page_size=page_size, context_len=400)
            try:
                h.add("a", [1 + p % 30 for p in range(prompt)], max_new_tokens=2, ignore_eos=True)
            except ContextLengthError:
                assert prompt + 2 > capacity - 2 * page_size
                continue
            assert len(h.run(10)["a"].token_ids) == 2

    def test_a_head_that_must_wait_is_not_overtaken_and_gets_in(self, harness):
        h = harness(capacity=120, script=never_ends)
        h.add("first", [1] * 40, max_new_tokens=20)
        h.step()
        h.add("big", [2] * 60, max_new_tokens=20)
        h.add("small", [3] * 4, max_new_tokens=20)
        ends = []
        while not h.loop.idle:
            ends += [o.rid for o in h.step() if o.finish_reason]
        assert ends == ["first", "big", "small"]

    def test_more_new_tokens_than_the_default_come_where_they_are_the_minimum(self, harness):
        h = harness(context_len=190, script=never_ends)
        h.add("a", PROMPT, min_new_tokens=150)
        assert len(h.run()["a"].token_ids) == 150

    def test_a_retracted_request_goes_on_before_better_matches(self, harness):
        h = harness(capacity=60, schedule_policy="lpm", script=never_ends, clip_max_new_tokens=2)
        h.add("warm", [1] * 20, max_new_tokens=1)
        h.run()
        h.add("a", [2] * 8, max_new_tokens=30)
        h.add("b", [3] * 8, max_new_tokens=30)
        ends = []
        arrived = False
        while not h.loop.idle:
            ends += [o.rid for o in h.step() if o.finish_reason]
            if not arrived and h.scheduler.num_waiting:
                h.add("late", [1] * 20, max_new_tokens=20)
                arrived = True
        assert arrived
        assert max(h.outputs[rid].last.retractions for rid in "ab") > 0
        assert ends[-1] == "late"

    def test_default_length_is_cut_to_what_fits(self, harness):
        h = harness(context_len=60, script=never_ends)
        h.add("a", [1] * 50)
        assert len(h.run()["a"].token_ids) == 10


class TestFailures:
    def test_a_bad_row_ends_alone_and_leaves_nothing_in_the_cache(
        self, harness, output_alone, overlap
    ):
        def script(history):
            if history[0] == 40 and len(history) > 13:
                raise ScriptedRowError("logits are not finite")
            return never_ends(history)

        h = harness(overlap=overlap, script=script)
        h.add("good", PROMPT, max_new_tokens=12)
        h.add("bad", [40] * 12, max_new_tokens=12)
        out = h.run()
        assert out["bad"].finish_reason.type == "error"
        assert "not finite" in out["bad"].finish_reason.message
        assert out["good"].token_ids == output_alone(PROMPT, 12, never_ends)

    def test_a_bad_first_row_is_not_published(self, harness, overlap):
        def script(history):
            raise ScriptedRowError("logits are not finite")

        h = harness(overlap=overlap, script=script)
        h.add("bad", PROMPT, max_new_tokens=12)
        h.run()
        assert h.manager.tree.sizes.total == 0

    def test_a_step_that_raises_ends_its_requests_and_the_engine_goes_on(
        self, harness, output_alone, overlap
    ):
        h = harness(overlap=overlap)
        run, fail = h.runner._run, [True]

        def failing(step):
            if fail.pop() if fail else False:
                raise RuntimeError("device lost")
            return run(step)

        h.runner._run = failing
        h.add("a", PROMPT, max_new_tokens=5)
        h.run()
        assert "device lost" in h.outputs["a"].finish_reason.message
        h.add("b", PROMPT, max_new_tokens=5)
        assert h.run()["b"].token_ids == output_alone(PROMPT, 5)

    def test_a_forward_that_raises_at_once_ends_its_requests(self, harness, overlap):
        h = harness(overlap=overlap)
        forward = h.runner.forward
        h.runner.forward = lambda batch: (_ for _ in ()).throw(MemoryError("no room"))
        h.add("a", PROMPT, max_new_tokens=5)
        h.run()
        assert "no room" in h.outputs["a"].finish_reason.message
        h.runner.forward = forward
        h.add("b", PROMPT, max_new_tokens=5)
        assert h.run()["b"].finish_reason.type in ("stop", "length")


class TestBadInput:
    @pytest.mark.parametrize(
        ("prompt", "says"),
        [
            ([], "at least one"),
            ([[1, 2]], "flat list"),
            ([1.5], "integer"),
            ([-1], "token id -1"),
            ([50], "0 to 49"),
            (["a"], "integer"),
            ([1, True], "integer"),
            ([1, [2]], "flat list"),
        ],
    )
    def test_a_bad_prompt_is_refused_and_nothing_is_queued(self, harness, prompt, says):
        h = harness()
        with pytest.raises(ValueError, match=says):
            h.scheduler.add("a", prompt, SamplingParams())
        assert h.loop.idle

    @pytest.mark.parametrize("namespace", [["x"], ([1],), (1.5,), None, "x"])
    def test_a_namespace_that_the_cache_does_not_take_is_refused(self, harness, namespace):
        h = harness()
        with pytest.raises(ValueError, match="namespace"):
            h.add("a", PROMPT, namespace)
        assert h.loop.idle

    def test_the_prompt_is_copied(self, harness, output_alone):
        h = harness()
        prompt = np.array(PROMPT, np.int32)
        h.add("a", prompt, max_new_tokens=5)
        prompt[:] = 1
        assert h.run()["a"].token_ids == output_alone(PROMPT, 5)

    def test_an_end_of_text_outside_the_vocabulary_is_refused(self, harness):
        with pytest.raises(ValueError, match="eos_token_ids has 50"):
            harness(eos_token_ids=(0, 50))

    def test_an_id_in_use_is_refused(self, harness):
        h = harness()
        h.add("a", PROMPT)
        with pytest.raises(ValueError, match="in use"):
            h.scheduler.add("a", PROMPT, SamplingParams())

    def test_ids_outside_the_vocabulary_are_refused(self, harness):
        h = harness()
        with pytest.raises(ValueError, match="stop_token_ids has token id 99"):
            h.scheduler.add("a", PROMPT, SamplingParams(stop_token_ids=(99,)))
        with pytest.raises(ValueError, match="logit_bias has token id 50"):
            h.scheduler.add("a", PROMPT, SamplingParams(logit_bias={50: 1.0}))

    def test_a_chunk_that_is_no_multiple_of_the_page_is_refused(self, harness):
        with pytest.raises(
            ValueError, match=r"page_size 16 does not divide chunked_prefill_size 24"
        ):
            harness(page_size=16, chunked_prefill_size=24)

    def test_stop_strings_need_a_stop_checker(self, harness):
        with pytest.raises(ValueError, match="StopChecker"):
            harness().add("a", PROMPT, stop=("x",))


class TestLogprobs:
    def script(self, history):
        return {1: 0.5, 2: 0.25, 3 + len(history) % 5: 0.25}

    def test_of_chosen_and_likeliest_tokens_come_with_each_token(self, harness, overlap):
        h = harness(overlap=overlap, script=self.script)
        h.add("a", PROMPT, max_new_tokens=4, top_logprobs=2)
        h.add("plain", PROMPT, max_new_tokens=4)
        out = h.run()
        assert [round(p.logprob, 4) for p in out["a"].logprobs] == [-0.6931] * 4
        assert out["a"].logprobs[0].top.token_ids.tolist() == [1, 2]
        assert out["plain"].logprobs == []

    @pytest.mark.parametrize("first", [0, 1, 4, 9, 10, 30])
    @pytest.mark.parametrize("chunk", [None, 4])
    def test_prompt_logprobs_are_the_same_cold_warm_and_in_chunks(
        self, harness, overlap, first, chunk
    ):
        h = harness(overlap=overlap, script=self.script, chunked_prefill_size=chunk)
        seen = []
        for rid in ("cold", "warm"):
            h.add(rid, PROMPT, max_new_tokens=2, prompt_logprobs_from=first, top_logprobs=1)
            seen.append(h.run()[rid].prompt_logprobs)
        weights = [self.script(np.array(PROMPT[:p])) for p in range(len(PROMPT))]
        expected = [
            np.log(weights[p][PROMPT[p]]) if PROMPT[p] in weights[p] else -np.inf
            for p in range(max(first, 1), len(PROMPT))
        ]
        assert seen[0] == pytest.approx(expected)
        assert seen[1] == pytest.approx(expected)

    def test_a_warm_prompt_without_prompt_logprobs_is_still_cached(self, harness):
        h = harness(script=self.script)
        h.add("a", PROMPT, max_new_tokens=2, prompt_logprobs_from=6)
        h.run()
        h.add("b", PROMPT, max_new_tokens=2, prompt_logprobs_from=6)
        h.run()
        assert h.outputs["b"].last.cached_tokens == 5


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


def test_timings_follow_the_clock(harness):
    h = harness(max_running_requests=1, script=never_ends)
    h.add("a", PROMPT, max_new_tokens=3)
    h.add("b", PROMPT, max_new_tokens=3)
    out = h.run()
    assert out["a"].last.timings.admitted == 1.0
    assert out["a"].last.timings.finished == 3.0
    b = out["b"].last.timings
    assert (b.arrived, b.admitted, b.first_token, b.finished) == (0.0, 4.0, 4.0, 6.0)


def test_the_overlap_loop_discards_the_step_after_a_stop(harness):
    h = harness(overlap=True, script=lambda history: 0 if len(history) == 14 else 5)
    h.add("a", PROMPT, max_new_tokens=50)
    out = h.run()["a"]
    assert out.token_ids == [5, 5, 5, 5, 0]
    assert len(h.runner.steps) == 6


def test_the_overlap_loop_foresees_an_end_by_length(harness):
    h = harness(overlap=True, script=never_ends)
    h.add("a", PROMPT, max_new_tokens=5)
    h.run()
    assert len(h.runner.steps) == 5
