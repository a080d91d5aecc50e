"""What the overlap loop does differently, and what must not show of it."""

from __future__ import annotations

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
