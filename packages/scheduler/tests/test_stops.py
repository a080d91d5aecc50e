"""What ends a request: length, end of text, stop ids and stop strings, and their order."""

from __future__ import annotations

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3]


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


def test_more_new_tokens_than_the_default_come_where_they_are_the_minimum(harness, never_ends):
    h = harness(context_len=190, script=never_ends)
    h.add("a", PROMPT, min_new_tokens=150)
    assert len(h.run()["a"].token_ids) == 150


def test_the_default_length_is_cut_to_what_fits(harness, never_ends):
    h = harness(context_len=60, script=never_ends)
    h.add("a", [1] * 50)
    assert len(h.run()["a"].token_ids) == 10
