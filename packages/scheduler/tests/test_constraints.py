"""Requests that a constraint holds for: what comes is legal, and nobody else notices."""

from __future__ import annotations

import numpy as np
import pytest
from constraint_support import EOS, IDS, SPELLINGS, WordsMatcher, preferring, spell, spread_script

from phloem.scheduler import PlainTokens, TopLogprobs

PROMPT = [40, 41, 42]
WORDS = ("abcdef", "abcf", "face", "bbb")


def ids(*spellings):
    return [IDS[s.encode()] for s in spellings]


@pytest.fixture
def constrained(harness, overlap):
    """Makes harnesses whose script goes for anything at all."""

    def make(script=spread_script, **options):
        return harness(overlap=overlap, script=script, **options)

    return make


class TestOutputs:
    @pytest.mark.parametrize("seed", range(8))
    @pytest.mark.parametrize("sealed", [True, False])
    def test_an_output_is_one_of_the_words(self, constrained, seed, sealed):
        h = constrained()
        h.add(
            "r",
            PROMPT,
            max_new_tokens=20,
            temperature=1,
            seed=seed,
            matcher=WordsMatcher(WORDS, sealed=sealed),
        )
        got = h.run()["r"]
        assert spell(got.token_ids) in WORDS
        assert got.finish_reason.type == "stop"
        assert got.finish_reason.matched == (None if sealed else EOS)
        assert (got.token_ids[-1] == EOS) == (not sealed)

    def test_batches_say_whether_masks_may_come(self, constrained):
        h = constrained()
        h.add("plain", PROMPT, max_new_tokens=30, ignore_eos=True)
        held = h.add("held", PROMPT[::-1], max_new_tokens=20, matcher=WordsMatcher(WORDS))
        schedule, expected = h.scheduler.schedule, []

        def noting():
            batch = schedule()
            if batch is not None:
                expected.append(any(row.request is held for row in batch))
            return batch

        h.scheduler.schedule = noting
        h.run()
        assert [step.masked for step in h.runner.steps] == expected
        assert set(expected) == {True, False}

    def test_tokens_of_which_nothing_else_comes_are_taken_in_with_those_of_others(
        self, constrained
    ):
        h = constrained(preferring(*ids("a", "b", "c", "d", "e", "f")))
        h.add("plain", PROMPT, max_new_tokens=6)
        h.add("held", PROMPT, max_new_tokens=6, matcher=WordsMatcher(WORDS))
        h.add("looked-at", PROMPT, max_new_tokens=6, top_logprobs=1, matcher=WordsMatcher(WORDS))
        together = []
        while not h.loop.idle:
            parts = h.step().parts
            together += [part.rids for part in parts if isinstance(part, PlainTokens)]
        # The first come of the prompts' steps, and the last ends a word.
        assert together[:4] == [["plain", "held"]] * 4
        assert "held" not in [rid for rids in together[4:] for rid in rids]
        for rid in ("held", "looked-at"):
            assert spell(h.outputs[rid].token_ids) == "abcdef"
            assert h.outputs[rid].finish_reason.type == "stop"

    def test_all_words_can_come(self, constrained):
        h = constrained()
        for seed in range(60):
            h.add(
                f"r{seed}",
                PROMPT,
                max_new_tokens=20,
                temperature=1,
                seed=seed,
                matcher=WordsMatcher(WORDS),
            )
        assert {spell(got.token_ids) for got in h.run().values()} == set(WORDS)

    def test_an_output_ends_by_length_in_the_middle_of_a_word(self, constrained):
        h = constrained(preferring(*ids("a", "b", "c", "d", "e", "f")))
        h.add("r", PROMPT, max_new_tokens=4, matcher=WordsMatcher(WORDS))
        got = h.run()["r"]
        assert spell(got.token_ids) == "abcd"
        assert got.finish_reason.type == "length"

    def test_a_word_that_is_complete_at_the_limit_has_stopped(self, constrained):
        h = constrained(preferring(*ids("f", "a", "c", "e")))
        h.add("r", PROMPT, max_new_tokens=4, matcher=WordsMatcher(WORDS))
        got = h.run()["r"]
        assert spell(got.token_ids) == "face"
        assert got.finish_reason.type == "stop"

    def test_the_empty_word_is_a_stop_token(self, constrained):
        h = constrained()
        h.add("r", PROMPT, max_new_tokens=4, matcher=WordsMatcher([""]))
        got = h.run()["r"]
        assert got.token_ids == [EOS]
        assert got.finish_reason.type == "stop"

    def test_a_request_for_no_tokens_gets_none(self, constrained):
        h = constrained()
        h.add("r", PROMPT, max_new_tokens=0, matcher=WordsMatcher(WORDS))
        got = h.run()["r"]
        assert got.token_ids == []
        assert got.finish_reason.type == "length"

    def test_forks_of_one_matcher_go_their_own_ways(self, constrained):
        h = constrained()
        first = WordsMatcher(WORDS)
        for seed in range(12):
            h.add(
                f"r{seed}",
                PROMPT,
                max_new_tokens=20,
                temperature=1,
                seed=seed,
                matcher=first.fork(),
            )
        outputs = {spell(got.token_ids) for got in h.run().values()}
        assert outputs <= set(WORDS)
        assert len(outputs) > 1
        assert first.texts == [b""]


class TestEnds:
    def test_a_stop_token_is_put_off_below_min_new_tokens_where_the_word_goes_on(self, constrained):
        h = constrained(preferring(*ids("a"), EOS, *ids("b"), EOS))
        h.add("r", PROMPT, max_new_tokens=9, min_new_tokens=3, matcher=WordsMatcher(["a", "abc"]))
        got = h.run()["r"]
        assert spell(got.token_ids) == "abc"
        assert got.finish_reason.type == "stop"

    @pytest.mark.parametrize("sealed", [True, False])
    def test_a_word_that_cannot_go_on_ends_below_min_new_tokens_all_the_same(
        self, constrained, sealed
    ):
        h = constrained()
        h.add(
            "r",
            PROMPT,
            max_new_tokens=9,
            min_new_tokens=8,
            matcher=WordsMatcher(["a"], sealed=sealed),
        )
        got = h.run()["r"]
        assert spell(got.token_ids) == "a"
        assert got.finish_reason.type == "stop"

    def test_who_ignores_the_end_of_text_goes_on_while_the_word_does(self, constrained):
        h = constrained(preferring(*ids("a"), EOS, EOS, EOS))
        h.add(
            "r",
            PROMPT,
            max_new_tokens=9,
            ignore_eos=True,
            matcher=WordsMatcher(["a", "abc"], sealed=False),
        )
        got = h.run()["r"]
        assert spell(got.token_ids) == "abc"
        assert got.finish_reason.type == "stop"
        assert got.finish_reason.matched == EOS

    def test_a_stop_id_of_the_request_ends_it_inside_of_a_word(self, constrained):
        h = constrained(preferring(*ids("a", "b", "c", "d")))
        h.add(
            "r",
            PROMPT,
            max_new_tokens=9,
            stop_token_ids=tuple(ids("c")),
            matcher=WordsMatcher(WORDS),
        )
        got = h.run()["r"]
        assert spell(got.token_ids) == "abc"
        assert got.finish_reason.matched == IDS[b"c"]


class TestSteering:
    def test_near_the_limit_only_what_can_still_be_completed_comes(self, constrained):
        long = "abc" + "f" * 30
        for limit in (2, 3, 4, 5):
            h = constrained(preferring(*ids("a", "b", "c", "f", "f")))
            h.add(
                "r",
                PROMPT,
                max_new_tokens=limit,
                steer=True,
                matcher=WordsMatcher([long, "abcde", "abcdf"]),
            )
            got = h.run()["r"]
            assert spell(got.token_ids) in ("abcde", "abcdf"), limit
            assert got.finish_reason.type == "stop"

    def test_without_it_the_output_is_cut(self, constrained):
        h = constrained(preferring(*ids("a", "b", "c", "f", "f")))
        h.add("r", PROMPT, max_new_tokens=5, matcher=WordsMatcher(["abc" + "f" * 30, "abcde"]))
        got = h.run()["r"]
        assert spell(got.token_ids) == "abcff"
        assert got.finish_reason.type == "length"


class TestCompany:
    def test_others_in_the_batch_get_what_they_get_alone(
        self, constrained, any_script, output_alone
    ):
        def script(history):
            return any_script(history) if history[0] < 10 else spread_script(history)

        h = constrained(script)
        for i in range(6):
            h.add(f"free{i}", [1 + i, 2, 3], max_new_tokens=12)
            h.add(f"held{i}", [40 + i, 2, 3], max_new_tokens=12, matcher=WordsMatcher(WORDS))
        out = h.run()
        for i in range(6):
            assert out[f"free{i}"].token_ids == output_alone([1 + i, 2, 3], 12)
            assert spell(out[f"held{i}"].token_ids) in WORDS

    def test_a_step_without_constraints_is_sampled_without_masks(self, constrained, never_ends):
        h = constrained(never_ends)
        masks = []
        sample = h.runner.sample
        h.runner.sample = lambda step, mask: (masks.append(mask), sample(step, mask))
        h.add("free", PROMPT, max_new_tokens=5)
        h.run()
        assert masks == [None] * len(masks)
        h.add("held", PROMPT, max_new_tokens=5, matcher=WordsMatcher(WORDS))
        h.run()
        assert masks[-1].bits.shape == (1, 2)

    def test_penalties_biases_and_logprobs_work_with_a_constraint(self, constrained):
        h = constrained(preferring(*ids("f", "a", "c", "e")))
        h.add(
            "r",
            PROMPT,
            max_new_tokens=9,
            frequency_penalty=1.0,
            repetition_penalty=1.3,
            logit_bias={EOS: 50.0, 49: 100.0},
            top_logprobs=2,
            matcher=WordsMatcher(WORDS),
        )
        got = h.run()["r"]
        assert spell(got.token_ids) == "face"
        assert len(got.logprobs) == 4
        assert all(isinstance(entry.top, TopLogprobs) for entry in got.logprobs)
        assert all(np.isfinite(entry.logprob) for entry in got.logprobs)

    def test_a_chunked_prompt_is_constrained_from_its_last_chunk_on(self, constrained):
        h = constrained(chunked_prefill_size=8, max_prefill_tokens=8)
        h.add("r", [40] * 50, max_new_tokens=9, matcher=WordsMatcher(WORDS))
        assert spell(h.run()["r"].token_ids) in WORDS

    def test_an_output_is_the_same_after_a_retraction(self, constrained):
        words = ["ab" * 20, "ba" * 20, "abab" * 10 + "c"]
        quiet = constrained()
        tight = constrained(capacity=90, schedule_conservativeness=0.01)
        for h in (quiet, tight):
            for i in range(4):
                h.add(
                    f"r{i}",
                    [40 + i] * 6,
                    max_new_tokens=60,
                    temperature=1,
                    seed=i,
                    matcher=WordsMatcher(words),
                )
            h.run()
        assert sum(got.last.retractions for got in tight.outputs.values())
        for rid, got in tight.outputs.items():
            assert got.token_ids == quiet.outputs[rid].token_ids
            assert spell(got.token_ids) in words


class TestFailures:
    """One bad matcher harms only its own request, in the step in which it goes wrong."""

    def other_is_well(self, h):
        assert spell(h.run()["other"].token_ids) in WORDS
        assert h.outputs["other"].finish_reason.type == "stop"

    @pytest.mark.parametrize("breaks_at", ["", "a", "abc"])
    def test_a_matcher_that_raises_ends_its_request(self, constrained, breaks_at):
        h = constrained(preferring(*ids("a", "b", "c", "d")))
        h.add("r", PROMPT, max_new_tokens=9, matcher=WordsMatcher(WORDS, breaks_at=breaks_at))
        h.add("other", PROMPT, max_new_tokens=9, matcher=WordsMatcher(WORDS))
        got = h.run()["r"]
        assert spell(got.token_ids) == breaks_at
        assert got.finish_reason.type == "error"
        assert got.finish_reason.status_code == 500
        assert "this matcher is broken" in got.finish_reason.message
        self.other_is_well(h)

    def test_a_matcher_that_refuses_what_its_mask_allowed_ends_its_request(self, constrained):
        h = constrained(preferring(*ids("a", "b")))
        matcher = WordsMatcher(WORDS)
        matcher.accept = lambda token: False
        h.add("r", PROMPT, max_new_tokens=9, matcher=matcher)
        h.add("other", PROMPT, max_new_tokens=9, matcher=WordsMatcher(WORDS))
        got = h.run()["r"]
        assert got.token_ids == []
        assert f"does not allow token {IDS[b'a']}" in got.finish_reason.message
        self.other_is_well(h)

    def test_a_mask_without_any_token_ends_its_request(self, constrained):
        h = constrained()
        matcher = WordsMatcher(WORDS)

        def nothing(mask, row, tokens_left=None):
            mask[row] = 0

        matcher.fill_mask = nothing
        h.add("r", PROMPT, max_new_tokens=9, matcher=matcher)
        h.add("other", PROMPT, max_new_tokens=9, matcher=WordsMatcher(WORDS))
        got = h.run()["r"]
        assert got.token_ids == []
        assert got.finish_reason.type == "error"
        self.other_is_well(h)

    def test_it_ends_in_the_step_that_went_wrong(self, harness):
        h = harness(script=preferring(*ids("a", "b", "c")))
        h.add("r", PROMPT, max_new_tokens=9, matcher=WordsMatcher(WORDS, breaks_at="a"))
        (first,) = h.step()
        assert first.finish_reason.type == "error"
        assert h.loop.idle

    @pytest.mark.parametrize("steps", range(5))
    def test_an_abort_at_any_time_leaves_the_others_alone(self, constrained, steps):
        h = constrained()
        h.add("r", PROMPT, max_new_tokens=9, matcher=WordsMatcher(["abcdef" * 5]))
        h.add("other", PROMPT, max_new_tokens=9, matcher=WordsMatcher(WORDS))
        for _ in range(steps):
            h.step()
        h.scheduler.abort("r")
        self.other_is_well(h)
        assert h.outputs["r"].finish_reason.type == "abort"
        assert ("abcdef" * 5).startswith(spell(h.outputs["r"].token_ids))

    def test_a_failed_step_ends_constrained_requests_too(self, constrained):
        h = constrained()
        h.add("r", PROMPT, max_new_tokens=9, matcher=WordsMatcher(WORDS))
        run = h.runner._run

        def fails(step):
            h.runner._run = run
            raise RuntimeError("out of order")

        h.runner._run = fails
        assert "out of order" in h.run()["r"].finish_reason.message
        h.add("next", PROMPT, max_new_tokens=9, matcher=WordsMatcher(WORDS))
        assert spell(h.run()["next"].token_ids) in WORDS


def test_spellings_are_what_the_tests_think():
    assert spell(ids("ab", "cd", "e")) == "abcde"
    assert len(SPELLINGS) == len(IDS)
