"""Holding the scheduler still, flushing the cache meanwhile, and changing the weights."""

from __future__ import annotations

import pytest
from constraint_support import IDS, MergingTokenizer, WordsMatcher

from phloem.scheduler import PauseMode, Status

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]
OTHER = [2, 7, 1, 8, 2, 8]


def running(harness, overlap, script, **options):
    """Two requests that run and one that waits."""
    h = harness(overlap=overlap, script=script, max_running_requests=2, **options)
    a = h.add("a", PROMPT, max_new_tokens=20)
    b = h.add("b", OTHER, max_new_tokens=20)
    c = h.add("c", PROMPT, max_new_tokens=20)
    h.step_until(lambda: a.num_output == 4)
    return h, a, b, c


def rest(h, mode):
    h.scheduler.pause(mode)
    h.step_until(lambda: h.loop.idle)


def test_in_place_goes_on_where_it_was(harness, output_alone, overlap, never_ends):
    h, a, b, c = running(harness, overlap, never_ends)
    rest(h, PauseMode.IN_PLACE)
    steps, known = len(h.runner.steps), a.num_output
    for _ in range(5):
        h.step()
    assert (len(h.runner.steps), a.num_output) == (steps, known)
    assert (a.status, b.status, c.status) == (Status.RUNNING, Status.RUNNING, Status.WAITING)
    assert h.scheduler.paused is PauseMode.IN_PLACE
    h.scheduler.resume()
    assert h.scheduler.paused is None
    for rid, prompt in (("a", PROMPT), ("b", OTHER), ("c", PROMPT)):
        assert h.run()[rid].token_ids == output_alone(prompt, 20, never_ends)
        assert h.outputs[rid].last.retractions == 0


WORDS = ("abbacdfab" * 3 + "e", "abbacdfab" * 3 + "f", "fff")


def weighed(history):
    """Some token that depends on the whole history, unless a mask leaves none but letters."""
    return {int(history.sum() * 7 + len(history)) % 40 + 1: 1.0, IDS[b"a"]: 0.5}


@pytest.mark.parametrize("jump", [False, True])
def test_in_place_at_any_step_changes_nothing_beside_a_constraint(harness, overlap, jump):
    def outputs(pause_at):
        h = harness(
            overlap=overlap,
            script=weighed,
            tokenizer=MergingTokenizer(),
            enable_jump_forward=jump,
        )
        h.add("constrained", [40, 41, 42], max_new_tokens=60, matcher=WordsMatcher(WORDS))
        h.add("plain", [30, 31, 32], max_new_tokens=60, ignore_eos=True)
        while not h.loop.idle:
            if h.steps == pause_at:
                rest(h, PauseMode.IN_PLACE)
                h.scheduler.resume()
            h.step()
        return {rid: out.token_ids for rid, out in h.outputs.items()}

    expected = outputs(None)
    for step in range(1, 40):
        assert outputs(step) == expected, step


def test_retract_gives_the_memory_back_and_starts_over_in_order(
    harness, output_alone, overlap, never_ends
):
    h, a, b, c = running(harness, overlap, never_ends)
    rest(h, PauseMode.RETRACT)
    assert (h.scheduler.num_active, h.scheduler.num_waiting) == (0, 3)
    assert h.manager.available == h.manager.capacity
    assert h.manager.flush() > 0
    h.scheduler.resume()
    h.step()
    assert Status.WAITING not in (a.status, b.status)
    assert c.status is Status.WAITING
    assert [r.rid for r in h.scheduler.holders] == ["a", "b"]
    for rid, prompt in (("a", PROMPT), ("b", OTHER), ("c", PROMPT)):
        assert h.run()[rid].token_ids == output_alone(prompt, 20, never_ends)


def test_retract_is_no_retraction_that_counts(harness, never_ends):
    h, a, *_ = running(harness, False, never_ends, max_retractions=1)
    for _ in range(3):
        rest(h, PauseMode.RETRACT)
        h.scheduler.resume()
        h.step()
    assert a.retractions == 0
    assert len(h.run()["a"].token_ids) == 20


def test_retract_in_the_middle_of_a_chunked_prefill(harness, output_alone, overlap):
    h = harness(overlap=overlap, chunked_prefill_size=4)
    long = h.add("long", PROMPT * 8, max_new_tokens=4)
    h.step_until(lambda: 8 <= long.scheduled < 60)
    rest(h, PauseMode.RETRACT)
    assert long.status is Status.WAITING
    h.scheduler.resume()
    assert h.run()["long"].token_ids == output_alone(PROMPT * 8, 4)


def test_abort_ends_all_that_are_there_and_later_ones_wait(
    harness, output_alone, overlap, never_ends
):
    h, *_ = running(harness, overlap, never_ends)
    rest(h, PauseMode.ABORT)
    assert {h.outputs[rid].finish_reason.type for rid in "abc"} == {"abort"}
    assert h.manager.available == h.manager.capacity
    h.add("late", OTHER, max_new_tokens=20)
    h.step()
    assert h.scheduler.num_waiting == 1
    h.scheduler.resume()
    assert h.run()["late"].token_ids == output_alone(OTHER, 20, never_ends)


def test_a_pause_may_become_another_one(harness, overlap, never_ends):
    h, a, *_ = running(harness, overlap, never_ends)
    rest(h, PauseMode.IN_PLACE)
    rest(h, PauseMode.IN_PLACE)
    assert a.status is Status.RUNNING
    rest(h, PauseMode.RETRACT)
    assert a.status is Status.WAITING
    rest(h, PauseMode.ABORT)
    assert h.outputs["a"].finish_reason.type == "abort"
    h.scheduler.resume()
    h.scheduler.resume()
    h.run()


def test_a_mode_goes_by_its_name():
    assert PauseMode.of("in_place") is PauseMode.IN_PLACE
    with pytest.raises(ValueError, match="mode 'gently' is unknown: use one of abort, retract"):
        PauseMode.of("gently")


class TestWeights:
    """Case SC-09."""

    def test_after_a_change_nothing_old_is_found(self, harness):
        h = harness()
        h.add("old", PROMPT, max_new_tokens=2, namespace=("salt",))
        h.run()
        h.scheduler.set_weight_version("two")
        assert h.scheduler.weight_version == "two"
        for rid, cached in (("new", 0), ("again", len(PROMPT) - 1)):
            h.add(rid, PROMPT, max_new_tokens=2, namespace=("salt",))
            assert h.run()[rid].last.cached_tokens == cached

    def test_going_back_finds_what_is_still_there(self, harness):
        h = harness()
        h.add("old", PROMPT, max_new_tokens=2)
        h.run()
        h.scheduler.set_weight_version("two")
        h.scheduler.set_weight_version("default")
        h.add("new", PROMPT, max_new_tokens=2)
        assert h.run()["new"].last.cached_tokens == len(PROMPT) - 1

    def test_saying_the_same_again_changes_nothing(self, harness, never_ends):
        h = harness(script=never_ends)
        a = h.add("a", PROMPT, max_new_tokens=5)
        h.step()
        h.scheduler.set_weight_version("default")
        assert a.publish
        h.run()

    @pytest.mark.parametrize("paused", [False, True])
    def test_who_keeps_its_memory_leaves_nothing_in_the_cache(
        self, harness, output_alone, overlap, never_ends, paused
    ):
        h = harness(overlap=overlap, script=never_ends, chunked_prefill_size=8)
        a = h.add("a", PROMPT, max_new_tokens=10)
        long = h.add("long", OTHER * 8, max_new_tokens=4)
        h.step_until(lambda: a.num_output and 8 < long.scheduled < 40)
        if paused:
            rest(h, PauseMode.IN_PLACE)
        cached = h.manager.tree.sizes.total
        h.scheduler.set_weight_version("two")
        h.scheduler.resume()
        out = h.run()
        assert out["a"].token_ids == output_alone(PROMPT, 10, never_ends)
        assert out["long"].token_ids == output_alone(OTHER * 8, 4, never_ends)
        assert h.manager.tree.sizes.total == cached

    def test_who_was_retracted_starts_over_on_the_new_ones(self, harness, overlap, never_ends):
        h, a, *_ = running(harness, overlap, never_ends)
        rest(h, PauseMode.RETRACT)
        h.scheduler.set_weight_version("two")
        h.scheduler.resume()
        h.step()
        assert a.scheduled >= len(PROMPT)
        assert h.runner.steps or h.loop._in_flight
        h.run()
        h.add("next", PROMPT, max_new_tokens=2)
        assert h.run()["next"].last.cached_tokens == len(PROMPT) - 1
        h.manager.drop(())
        h.add("last", PROMPT, max_new_tokens=2)
        assert h.run()["last"].last.cached_tokens == len(PROMPT) - 1

    def test_who_is_retracted_after_they_changed_comes_back_under_the_new_ones(
        self, harness, output_alone, overlap, never_ends
    ):
        h = harness(overlap=overlap, script=never_ends)
        a = h.add("a", PROMPT, max_new_tokens=20, namespace=("salt",))
        h.add("old", PROMPT, max_new_tokens=2, namespace=("salt",))
        h.step_until(lambda: a.num_output == 4 and not h.scheduler.has("old"))
        h.scheduler.set_weight_version("two")
        rest(h, PauseMode.RETRACT)
        h.scheduler.resume()
        out = h.run()["a"]
        assert out.token_ids == output_alone(PROMPT, 20, never_ends)
        found = {}
        for version in ("default", "two"):
            h.scheduler.set_weight_version(version)
            h.add(version, [*PROMPT, *out.token_ids], max_new_tokens=1, namespace=("salt",))
            found[version] = h.run()[version].last.cached_tokens
        # Of what "old" left it found nothing, and what it computed is where it belongs.
        assert found == {"default": len(PROMPT) + 1, "two": len(PROMPT) + 19}

    def test_who_waits_while_they_change_finds_nothing_old(self, harness, never_ends):
        h = harness(max_running_requests=1, script=never_ends, schedule_policy="lpm")
        h.add("old", PROMPT, max_new_tokens=2)
        h.run()
        h.add("runs", OTHER, max_new_tokens=5)
        h.step()
        waits = h.add("waits", PROMPT, max_new_tokens=2)
        h.add("waits too", OTHER, max_new_tokens=2)
        h.step()
        assert waits.status is Status.WAITING
        h.scheduler.set_weight_version("two")
        assert h.run()["waits"].last.cached_tokens == 0

    def test_a_namespace_cannot_name_a_version(self, harness):
        with pytest.raises(ValueError, match="which marks weights"):
            harness().add("a", PROMPT, namespace=(b"phloem.weights", "two", ()))
