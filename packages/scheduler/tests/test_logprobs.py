"""Logprobs of output and prompt tokens, through the scheduler."""

from __future__ import annotations

import numpy as np
import pytest

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3]


def weighted(history):
    return {1: 0.5, 2: 0.25, 3 + len(history) % 5: 0.25}


def test_logprobs_of_chosen_and_likeliest_tokens_come_with_each_token(harness, overlap):
    h = harness(overlap=overlap, script=weighted)
    h.add("a", PROMPT, max_new_tokens=4, top_logprobs=2)
    h.add("plain", PROMPT, max_new_tokens=4)
    out = h.run()
    assert [round(p.logprob, 4) for p in out["a"].logprobs] == [-0.6931] * 4
    assert out["a"].logprobs[0].top.token_ids.tolist() == [1, 2]
    assert out["plain"].logprobs == []


@pytest.mark.parametrize("first", [0, 1, 4, 9, 10, 30])
@pytest.mark.parametrize("chunk", [None, 4])
def test_prompt_logprobs_are_the_same_cold_warm_and_in_chunks(harness, overlap, first, chunk):
    h = harness(overlap=overlap, script=weighted, chunked_prefill_size=chunk)
    seen = []
    for rid in ("cold", "warm"):
        h.add(rid, PROMPT, max_new_tokens=2, prompt_logprobs_from=first, top_logprobs=1)
        seen.append(h.run()[rid].prompt_logprobs)
    weights = [weighted(np.array(PROMPT[:p])) for p in range(len(PROMPT))]
    expected = [
        np.log(weights[p][PROMPT[p]]) if PROMPT[p] in weights[p] else -np.inf
        for p in range(max(first, 1), len(PROMPT))
    ]
    assert seen[0] == pytest.approx(expected)
    assert seen[1] == pytest.approx(expected)


def test_a_warm_prompt_without_prompt_logprobs_is_still_cached(harness):
    h = harness(script=weighted)
    h.add("a", PROMPT, max_new_tokens=2, prompt_logprobs_from=6)
    h.run()
    h.add("b", PROMPT, max_new_tokens=2, prompt_logprobs_from=6)
    h.run()
    assert h.outputs["b"].last.cached_tokens == 5
