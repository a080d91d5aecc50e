"""What a request tells at its end of the way that it came."""

from __future__ import annotations

import pytest

from phloem.scheduler import Mark
from phloem.scheduler.request import MOST_MARKS


def test_the_chunks_of_a_prompt_are_told_with_their_times_and_sizes(harness, never_ends):
    h = harness(capacity=100, script=never_ends, chunked_prefill_size=8)
    h.add("r", [1] * 20, max_new_tokens=3)
    marks = h.run()["r"].last.marks
    assert [mark.tokens for mark in marks] == [8, 8, 4]
    assert {mark.kind for mark in marks} == {"chunk"}
    assert [mark.at - marks[0].at for mark in marks] == [0, 1, 2]


def test_what_was_taken_back_is_told_between_the_chunks_before_and_after(harness, never_ends):
    h = harness(capacity=60, script=never_ends, clip_max_new_tokens=2)
    h.add("old", [1] * 8, max_new_tokens=45)
    for _ in range(3):
        h.step()
    new = h.add("new", [2] * 8, max_new_tokens=45)
    h.step_until(lambda: new.retractions)
    last = h.run()["new"].last
    kinds = [mark.kind for mark in last.marks]
    assert kinds[:3] == ["chunk", "taken_back", "chunk"]
    assert kinds.count("taken_back") == last.retractions
    assert [mark.at for mark in last.marks] == sorted(mark.at for mark in last.marks)


def test_news_before_the_end_tell_none_and_a_long_way_is_told_in_part(harness, never_ends):
    h = harness(capacity=400, context_len=400, script=never_ends, chunked_prefill_size=2)
    request = h.add("r", [1] * (2 * MOST_MARKS + 6), max_new_tokens=2)
    h.step_until(lambda: request.num_output == 1)
    assert len(request.marks) == MOST_MARKS
    out = h.run()["r"]
    assert out.last.marks[0] == Mark("chunk", out.last.marks[0].at, 2)
    assert len(out.last.marks) == MOST_MARKS


@pytest.mark.parametrize("overlap", [False, True])
def test_steps_of_decoding_leave_no_marks(harness, never_ends, overlap):
    h = harness(capacity=100, script=never_ends, overlap=overlap)
    h.add("r", [1] * 5, max_new_tokens=20)
    assert len(h.run()["r"].last.marks) == 1
