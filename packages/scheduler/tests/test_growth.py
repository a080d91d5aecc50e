"""What admission keeps free for running requests: their expected growth, and what it learns."""

from __future__ import annotations

import pytest

from phloem.scheduler import Status


@pytest.fixture
def crowded(harness, never_ends):
    """A harness with memory for 100 tokens."""

    def make(**config):
        return harness(capacity=100, script=never_ends, **config)

    return make


def test_the_growth_of_running_requests_is_kept_free(crowded):
    h = crowded()
    h.add("runs", [1] * 10, max_new_tokens=50, ignore_eos=True)
    h.step()
    late = h.add("late", [2] * 10, max_new_tokens=50, ignore_eos=True)
    h.step()
    assert late.status is Status.WAITING
    out = h.run()
    assert [len(ended.token_ids) for ended in out.values()] == [50, 50]
    assert not out["runs"].last.retractions


def test_the_growth_of_those_let_in_together_is_kept_free(crowded):
    h = crowded()
    first = h.add("first", [1] * 10, max_new_tokens=50, ignore_eos=True)
    second = h.add("second", [2] * 10, max_new_tokens=50, ignore_eos=True)
    h.step()
    assert (first.status, second.status) == (Status.RUNNING, Status.WAITING)
    h.run()


@pytest.mark.parametrize(("ignore_eos", "then"), [(True, Status.WAITING), (False, Status.RUNNING)])
def test_only_who_ignores_the_end_of_text_is_expected_to_use_all_its_output(
    crowded, ignore_eos, then
):
    h = crowded()
    h.add("runs", [1] * 10, max_new_tokens=50, ignore_eos=ignore_eos)
    h.step()
    # Of 90 free tokens it may take 49 more, or is expected to take 0.7 of them; this one needs 42.
    late = h.add("late", [2] * 10, max_new_tokens=31)
    h.step()
    assert late.status is then
    h.run()


@pytest.mark.parametrize(("clip", "then"), [(4096, Status.WAITING), (10, Status.RUNNING)])
@pytest.mark.parametrize(
    ("runs", "prompt", "wanted"), [(60, 40, 10), (10, 20, 70)], ids=["of running", "of new"]
)
def test_output_beyond_the_clip_is_not_kept_free(crowded, clip, then, runs, prompt, wanted):
    h = crowded(clip_max_new_tokens=clip)
    h.add("runs", [1] * 10, max_new_tokens=runs, ignore_eos=True)
    h.step()
    late = h.add("late", [2] * prompt, max_new_tokens=wanted)
    h.step()
    assert late.status is then
    h.run()


@pytest.mark.parametrize(("steps", "then"), [(1, Status.WAITING), (300, Status.RUNNING)])
def test_the_expected_growth_falls_while_decoding_goes_well(harness, never_ends, steps, then):
    h = harness(capacity=420, context_len=420, script=never_ends)
    h.add("runs", [1] * (310 - steps), max_new_tokens=100 + steps)
    for _ in range(steps):
        h.step()
    # In both cases 111 tokens are free and it may take 100 of them; this one needs 51.
    late = h.add("late", [2] * 10, max_new_tokens=40)
    h.step()
    assert late.status is then
    h.run()


class TestAfterARetraction:
    """Two requests with little expected of them meet the end of the memory."""

    def overcommitted(self, crowded):
        h = crowded(schedule_conservativeness=0.1)
        h.add("stays", [1] * 10, max_new_tokens=60)
        gone = h.add("gone", [2] * 11, max_new_tokens=60)
        h.step()
        assert h.scheduler.num_active == 2
        h.step_until(lambda: gone.retractions)
        h.scheduler.abort("gone")
        return h

    def test_more_growth_is_expected(self, crowded):
        h = self.overcommitted(crowded)
        late = h.add("late", [3] * 10, max_new_tokens=25)
        h.step()
        assert late.status is Status.WAITING
        h.run()

    def test_an_empty_engine_has_forgotten_it(self, crowded):
        h = self.overcommitted(crowded)
        h.run()
        first = h.add("first", [4] * 10, max_new_tokens=60)
        second = h.add("second", [5] * 10, max_new_tokens=60)
        h.step()
        assert (first.status, second.status) == (Status.RUNNING, Status.RUNNING)
        h.run()
