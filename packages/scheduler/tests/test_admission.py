"""Who is let in, in which order, and against which memory."""

from __future__ import annotations

import pytest

from phloem.scheduler import ContextLengthError


@pytest.mark.parametrize("page_size", [1, 16, 64])
def test_whatever_passes_validation_is_admitted(harness, page_size):
    capacity = 256
    for prompt in range(1, capacity + 1):
        h = harness(capacity=capacity, page_size=page_size, context_len=400)
        try:
            h.add("a", [1 + p % 30 for p in range(prompt)], max_new_tokens=2, ignore_eos=True)
        except ContextLengthError:
            assert prompt + 2 > capacity - 2 * page_size
            continue
        assert len(h.run(10)["a"].token_ids) == 2


def test_a_head_that_must_wait_is_not_overtaken_and_gets_in(harness, never_ends):
    h = harness(capacity=120, script=never_ends)
    h.add("first", [1] * 40, max_new_tokens=20)
    h.step()
    h.add("big", [2] * 60, max_new_tokens=20)
    h.add("small", [3] * 4, max_new_tokens=20)
    ends = []
    while not h.loop.idle:
        ends += [o.rid for o in h.step() if o.finish_reason]
    assert ends == ["first", "big", "small"]
