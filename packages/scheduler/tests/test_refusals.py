"""What `Scheduler.add` and its construction refuse, before anything is queued."""

from __future__ import annotations

import numpy as np
import pytest

from phloem.scheduler import ContextLengthError, SamplingParams

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3]


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
def test_a_bad_prompt_is_refused_and_nothing_is_queued(harness, prompt, says):
    h = harness()
    with pytest.raises(ValueError, match=says):
        h.scheduler.add("a", prompt, SamplingParams())
    assert h.loop.idle


@pytest.mark.parametrize("namespace", [["x"], ([1],), (1.5,), None, "x"])
def test_a_namespace_that_the_cache_does_not_take_is_refused(harness, namespace):
    h = harness()
    with pytest.raises(ValueError, match="namespace"):
        h.add("a", PROMPT, namespace)
    assert h.loop.idle


def test_the_prompt_is_copied(harness, output_alone):
    h = harness()
    prompt = np.array(PROMPT, np.int32)
    h.add("a", prompt, max_new_tokens=5)
    prompt[:] = 1
    assert h.run()["a"].token_ids == output_alone(PROMPT, 5)


def test_an_end_of_text_outside_the_vocabulary_is_refused(harness):
    with pytest.raises(ValueError, match="eos_token_ids has 50"):
        harness(eos_token_ids=(0, 50))


def test_an_id_in_use_is_refused(harness):
    h = harness()
    h.add("a", PROMPT)
    with pytest.raises(ValueError, match="in use"):
        h.scheduler.add("a", PROMPT, SamplingParams())


def test_ids_outside_the_vocabulary_are_refused(harness):
    h = harness()
    with pytest.raises(ValueError, match="stop_token_ids has token id 99"):
        h.scheduler.add("a", PROMPT, SamplingParams(stop_token_ids=(99,)))
    with pytest.raises(ValueError, match="logit_bias has token id 50"):
        h.scheduler.add("a", PROMPT, SamplingParams(logit_bias={50: 1.0}))


def test_a_chunk_that_is_no_multiple_of_the_page_is_refused(harness):
    with pytest.raises(ValueError, match=r"page_size 16 does not divide chunked_prefill_size 24"):
        harness(page_size=16, chunked_prefill_size=24)


def test_stop_strings_need_a_stop_checker(harness):
    with pytest.raises(ValueError, match="StopChecker"):
        harness().add("a", PROMPT, stop=("x",))


def test_what_can_never_fit_is_refused_with_both_lengths(harness):
    h = harness(capacity=100, context_len=500)
    with pytest.raises(ContextLengthError, match=r"95 tokens.*holds 100"):
        h.add("a", [1] * 95, max_new_tokens=10)
    h2 = harness(capacity=1000, context_len=60)
    with pytest.raises(ContextLengthError, match=r"70 tokens.*context is 60"):
        h2.add("a", [1] * 70)
    assert h.loop.idle
    assert h2.loop.idle


def test_a_pool_too_small_for_anybody_refuses_everybody(harness):
    h = harness(capacity=16, page_size=16)
    with pytest.raises(ContextLengthError):
        h.add("a", [1], max_new_tokens=1)
    assert h.loop.idle
