"""Who is let in, in which order, and against which memory."""

from __future__ import annotations

import math

import pytest

from phloem.scheduler import ContextLengthError, Status


@pytest.mark.parametrize("page_size", [1, 16, 64])
def test_whatever_passes_validation_is_admitted(harness, page_size):
    """Case SC-02: what admission keeps free beside a request, validation asks for too."""
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


def test_what_can_never_fit_is_an_error_and_the_small_ones_behind_it_run(
    harness, overlap, never_ends
):
    """Case SC-03."""
    h = harness(capacity=100, context_len=500, overlap=overlap, script=never_ends)
    with pytest.raises(ContextLengthError):
        h.add("head", [1] * 95, max_new_tokens=10)
    for i in range(5):
        h.add(f"small{i}", [2 + i] * 4, max_new_tokens=5)
    out = h.run()
    assert [len(ended.token_ids) for ended in out.values()] == [5] * 5


def test_a_cached_prefix_is_not_counted_as_memory_that_could_be_had(harness, never_ends):
    h = harness(capacity=100, script=never_ends)
    h.add("warm", [1] * 61, max_new_tokens=1)
    h.run()
    h.add("runs", [2] * 20, max_new_tokens=10, ignore_eos=True)
    h.step()
    # It needs 22 tokens beside the 61 that it shares; 19 are free, of which 9 are kept.
    late = h.add("late", [*[1] * 61, 3], max_new_tokens=20)
    h.step()
    assert late.status is Status.WAITING
    assert h.run()["late"].last.cached_tokens == 61


def test_a_waiting_head_that_is_aborted_lets_in_those_behind_it(harness, never_ends):
    """Case SC-02: the end of one that waited leaves nothing blocked."""
    h = harness(capacity=120, script=never_ends)
    h.add("first", [1] * 40, max_new_tokens=20)
    h.step()
    h.add("big", [2] * 60, max_new_tokens=20)
    small = h.add("small", [3] * 4, max_new_tokens=20)
    h.step()
    assert small.status is Status.WAITING
    h.scheduler.abort("big")
    h.step()
    assert small.status is Status.RUNNING


def test_no_more_requests_run_than_allowed_though_rows_are_free(harness, overlap, never_ends):
    h = harness(rows=8, max_running_requests=3, overlap=overlap, script=never_ends)
    for i in range(7):
        h.add(f"r{i}", [1 + i] * 4, max_new_tokens=3 + i)
    h.run()
    assert max(step.num_rows for step in h.runner.steps) == 3


class TestOrder:
    STEM = tuple(1 + i % 40 for i in range(1000))

    def hot_traffic(self, harness, aging):
        """Under lpm, with one request a pass: the stem is cached, and a cold request waits."""
        h = harness(
            capacity=3000,
            context_len=1100,
            schedule_policy="lpm",
            aging_tokens=aging,
            max_running_requests=1,
        )
        h.add("warm", [*self.STEM, 1], max_new_tokens=1)
        h.run()
        return h, h.add("cold", [41] * 8, max_new_tokens=1)

    def one_pass(self, h, number):
        """A new request arrives that matches 1000 tokens, and somebody is let in."""
        h.add(f"hot{number}", [*self.STEM, 1 + number], max_new_tokens=1)
        h.step()

    @pytest.mark.parametrize("aging", [64, 300, 2000])
    def test_hot_requests_hold_a_cold_one_up_for_the_promised_passes_at_most(self, harness, aging):
        """Case SC-01."""
        h, cold = self.hot_traffic(harness, aging)
        passes = 0
        while cold.status is Status.WAITING:
            self.one_pass(h, passes)
            passes += 1
            assert passes <= math.ceil(1000 / aging) + 1
        assert passes > 1
        h.run()

    def test_without_aging_hot_requests_hold_a_cold_one_up_as_long_as_they_come(self, harness):
        h, cold = self.hot_traffic(harness, aging=0)
        for number in range(30):
            self.one_pass(h, number)
        assert cold.status is Status.WAITING
        assert h.run()["cold"].finish_reason is not None

    def test_passes_in_which_nobody_can_be_let_in_do_not_age_a_request(self, harness, never_ends):
        h = harness(schedule_policy="lpm", max_running_requests=1, rows=2, script=never_ends)
        h.add("runs", [1] * 100, max_new_tokens=20)
        cold = h.add("cold", [2] * 8, max_new_tokens=1)
        h.step_until(lambda: h.outputs["runs"].finish_reason)
        hot = h.add("hot", [1] * 101, max_new_tokens=1)
        h.step()
        assert (hot.status, cold.status) == (Status.FINISHED, Status.WAITING)
        h.run()

    def test_passes_in_which_memory_lets_nobody_in_do_not_count(self, harness, never_ends):
        h = harness(capacity=100, schedule_policy="lpm", script=never_ends)
        h.add("runs", [1] * 40, max_new_tokens=40, ignore_eos=True)
        h.step()
        passes = h.scheduler._waiting.passes
        for i in range(5):
            h.add(f"w{i}", [2 + i] * 40, max_new_tokens=4)
            h.step()
        assert h.scheduler._waiting.passes == passes
        h.run()

    def test_lpm_lets_in_as_they_came_while_more_wait_than_its_limit(self, harness):
        h = harness(schedule_policy="lpm", lpm_fallback_above=3, max_running_requests=1)
        h.add("warm", [1] * 20, max_new_tokens=1)
        h.run()
        for rid, token in (("cold1", 2), ("cold2", 3), ("cold3", 4), ("hot", 1)):
            h.add(rid, [token] * 20, max_new_tokens=1)
        ends = []
        while not h.loop.idle:
            ends += [o.rid for o in h.step() if o.finish_reason]
        assert ends == ["cold1", "hot", "cold2", "cold3"]
