"""What ends a request: length, end of text, stop ids and stop strings, and their order."""

from __future__ import annotations

import pytest

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


class Letters:
    """A StopChecker for which token n is the nth letter."""

    def matcher(self, stop):
        return LetterMatcher(stop)


class LetterMatcher:
    def __init__(self, stop):
        self._stop = stop
        self._text = ""

    def push(self, token_id):
        self._text += chr(96 + token_id)
        return next((s for s in self._stop if self._text.endswith(s)), None)


@pytest.fixture
def spelling(harness, overlap):
    """A harness whose requests all write "abc" again and again."""

    def abc(history):
        return 1 + (len(history) - len(PROMPT)) % 3

    return harness(overlap=overlap, script=abc, stop_checker=Letters())


def test_a_stop_string_ends_a_request_with_its_last_token(spelling):
    spelling.add("a", PROMPT, max_new_tokens=20, stop=("zz", "ca"))
    out = spelling.run()["a"]
    assert out.token_ids == [1, 2, 3, 1]
    assert (out.finish_reason.type, out.finish_reason.matched) == ("stop", "ca")


@pytest.mark.parametrize(("minimum", "length"), [(0, 3), (3, 3), (4, 6), (6, 6), (7, 9)])
def test_a_stop_string_below_min_new_tokens_does_not_count(spelling, minimum, length):
    spelling.add("a", PROMPT, max_new_tokens=20, min_new_tokens=minimum, stop="bc")
    out = spelling.run()["a"]
    assert (len(out.token_ids), out.finish_reason.matched) == (length, "bc")


def test_a_stop_id_counts_before_a_stop_string_and_both_before_the_length(spelling):
    spelling.add("id", PROMPT, max_new_tokens=3, stop="c", stop_token_ids=(3,))
    spelling.add("string", PROMPT, max_new_tokens=3, stop="c")
    spelling.add("length", PROMPT, max_new_tokens=3, stop="d")
    reasons = {rid: ended.finish_reason for rid, ended in spelling.run().items()}
    assert (reasons["id"].type, reasons["id"].matched) == ("stop", 3)
    assert (reasons["string"].type, reasons["string"].matched) == ("stop", "c")
    assert (reasons["length"].type, reasons["length"].matched) == ("length", None)


def test_a_stop_matcher_that_raises_ends_its_request_in_that_step(
    harness, output_alone, overlap, never_ends
):
    """Case AB-03: what watches a request's tokens fails in the middle of it."""

    class Broken:
        def matcher(self, stop):
            return self

        def push(self, token_id):
            if h.outputs["bad"].token_ids:
                raise RuntimeError("no such state")

    h = harness(overlap=overlap, script=never_ends, stop_checker=Broken())
    h.add("bad", PROMPT, max_new_tokens=20, stop=("x",))
    h.add("good", PROMPT, max_new_tokens=20)
    out = h.run()
    reason = out["bad"].finish_reason
    assert (reason.type, reason.status_code) == ("error", 500)
    assert "no such state" in reason.message
    assert len(out["bad"].token_ids) == 2
    assert out["good"].token_ids == output_alone(PROMPT, 20, never_ends)
