"""What the overlap loop does differently, and what must not show of it."""

from __future__ import annotations

import numpy as np

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3]


def test_the_overlap_loop_discards_the_step_after_a_stop(harness):
    h = harness(overlap=True, script=lambda history: 0 if len(history) == 14 else 5)
    h.add("a", PROMPT, max_new_tokens=50)
    out = h.run()["a"]
    assert out.token_ids == [5, 5, 5, 5, 0]
    assert len(h.runner.steps) == 6


def test_the_overlap_loop_foresees_an_end_by_length(harness, never_ends):
    h = harness(overlap=True, script=never_ends)
    h.add("a", PROMPT, max_new_tokens=5)
    h.run()
    assert len(h.runner.steps) == 5


def test_the_histories_for_penalties_stay_what_they_were_when_the_step_was_made(
    harness, overlap, never_ends
):
    h = harness(overlap=overlap, script=never_ends)
    request = h.add("a", PROMPT, max_new_tokens=8, presence_penalty=1.0)
    tokens = h.run()["a"].token_ids
    assert len(h.runner.steps) == 8
    for sampled, step in enumerate(h.runner.steps):
        (history,) = step.sampling.histories
        assert history.prompt.tolist() == PROMPT
        assert history.pending == (overlap and sampled > 0)
        assert history.output.tolist() == tokens[: sampled - history.pending]
        assert not np.shares_memory(history.output, request.output_ids)
