"""The queue's limits: who is refused, who is exempt, and when to come again."""

from __future__ import annotations

import pytest

from phloem.scheduler import QueueFullError, SchedulerConfig, Status


def full(h, waiting, length=4):
    """One request that runs to its end, and others behind it."""
    h.add("running", [1] * 8, max_new_tokens=100)
    h.step()
    for i in range(waiting):
        h.add(f"waiting{i}", [2] * length, max_new_tokens=2)


def test_the_request_after_the_last_that_may_wait_is_refused(harness, never_ends):
    """Case AB-06, in the scheduler."""
    h = harness(max_running_requests=1, max_queued_requests=2, script=never_ends)
    full(h, 2)
    with pytest.raises(QueueFullError, match="2 requests wait, and at most 2 may"):
        h.add("surplus", [3] * 4, max_new_tokens=2)
    assert not h.scheduler.has("surplus")
    out = h.run()
    assert [len(out[rid].token_ids) for rid in ("running", "waiting0", "waiting1")] == [100, 2, 2]


def test_an_abort_makes_room_in_the_queue(harness, never_ends):
    h = harness(max_running_requests=1, max_queued_requests=2, script=never_ends)
    full(h, 2)
    h.scheduler.abort("waiting0")
    h.add("late", [3] * 4, max_new_tokens=2)
    assert len(h.run()["late"].token_ids) == 2


def test_tokens_that_wait_are_limited_too(harness, never_ends):
    h = harness(max_running_requests=1, max_queued_tokens=20, script=never_ends)
    full(h, 2, length=8)
    with pytest.raises(QueueFullError, match="with this one, requests of 21 tokens would wait"):
        h.add("surplus", [3] * 5, max_new_tokens=2)
    h.add("fits", [3] * 4, max_new_tokens=2)
    h.run()


def test_an_empty_queue_takes_a_request_of_any_length(harness):
    h = harness(max_queued_tokens=20)
    h.add("long", [3] * 100, max_new_tokens=2)
    with pytest.raises(QueueFullError):
        h.add("next", [3], max_new_tokens=2)
    assert h.run()["long"].finish_reason.type in ("stop", "length")


def test_a_refused_request_draws_no_seed(harness):
    h = harness(max_queued_requests=1)
    plain = harness()
    h.add("a", [1], max_new_tokens=1)
    with pytest.raises(QueueFullError):
        h.add("b", [1], max_new_tokens=1)
    h.run()
    plain.add("a", [1], max_new_tokens=1)
    assert h.add("c", [1]).seed == plain.add("c", [1]).seed


def test_retracted_requests_are_exempt_and_go_to_the_front(harness, output_alone, never_ends):
    """Case SC-04."""
    h = harness(
        capacity=60,
        max_running_requests=2,
        max_queued_requests=2,
        script=never_ends,
        clip_max_new_tokens=2,
    )
    h.add("stays", [1] * 8, max_new_tokens=40)
    back = h.add("back", [2] * 9, max_new_tokens=40)
    h.step()
    waits = h.add("waits", [3] * 4, max_new_tokens=40)
    h.add("waits too", [4] * 4, max_new_tokens=40)
    h.step_until(lambda: back.retractions)
    assert h.scheduler.num_waiting == 3
    with pytest.raises(QueueFullError):
        h.add("surplus", [3] * 4, max_new_tokens=2)
    h.step_until(lambda: waits.status is not Status.WAITING)
    assert [r.rid for r in h.scheduler.holders] == ["back", "waits"]
    assert h.run()["back"].token_ids == output_alone([2] * 9, 40, never_ends)


def test_a_retracted_request_takes_no_place_of_a_new_one(harness, never_ends):
    h = harness(
        capacity=60,
        max_running_requests=2,
        max_queued_requests=1,
        script=never_ends,
        clip_max_new_tokens=2,
    )
    h.add("stays", [1] * 8, max_new_tokens=40)
    h.step()
    back = h.add("back", [2] * 9, max_new_tokens=40)
    h.step_until(lambda: back.retractions)
    h.add("new", [3] * 4, max_new_tokens=2)
    assert len(h.run()["new"].token_ids) == 2


def test_who_is_retracted_too_often_ends_and_the_others_go_on(
    harness, output_alone, overlap, never_ends
):
    """Case SC-04: the cap on retractions."""
    h = harness(
        capacity=60,
        overlap=overlap,
        script=never_ends,
        clip_max_new_tokens=2,
        max_retractions=1,
    )
    prompts = {f"r{i}": [i + 1] * 8 for i in range(3)}
    for rid, prompt in prompts.items():
        h.add(rid, prompt, max_new_tokens=40)
    out = h.run()
    ended = {rid for rid, o in out.items() if o.finish_reason.type == "error"}
    assert ended
    assert ended < set(prompts)
    for rid, prompt in prompts.items():
        whole = output_alone(prompt, 40, never_ends)
        if rid in ended:
            reason = out[rid].finish_reason
            assert (reason.status_code, reason.retry_after) == (503, 1)
            assert "retracted 1 times" in reason.message
            assert out[rid].token_ids == whole[: len(out[rid].token_ids)]
        else:
            assert out[rid].token_ids == whole


def refused(h):
    with pytest.raises(QueueFullError) as caught:
        h.add("surplus", [3] * 4, max_new_tokens=2)
    return caught.value.retry_after


def test_who_is_refused_is_told_when_the_queue_will_have_moved_on(harness, never_ends):
    h = harness(max_running_requests=1, max_queued_requests=5, script=never_ends)
    # Each takes four seconds: a step makes one token and takes one.
    for i in range(5):
        h.add(f"r{i}", [2] * 4, max_new_tokens=4)
    assert refused(h) == 1  # nothing is known yet
    for i in range(5, 12):
        h.step_until(lambda: h.scheduler.num_waiting < 5)
        h.add(f"r{i}", [2] * 4, max_new_tokens=4)
    assert refused(h) == pytest.approx(5 * 4, abs=4)
    h.run()


def test_a_queue_that_does_not_move_keeps_clients_away_for_longer(harness, never_ends):
    h = harness(max_running_requests=1, max_queued_requests=1, script=never_ends)
    full(h, 1)
    h.clock.now += 25
    assert refused(h) == 25
    h.clock.now += 1000
    assert refused(h) <= 60


def test_how_the_queue_moved_more_than_half_a_minute_ago_does_not_count(harness, never_ends):
    h = harness(max_running_requests=1, max_queued_requests=2, script=never_ends)

    def add(rid, max_new_tokens):
        h.step_until(lambda: h.scheduler.num_waiting < 2)
        return h.add(rid, [2] * 4, max_new_tokens=max_new_tokens)

    for i in range(20):
        add(f"fast{i}", 2)
    slow = add("slow", 100)
    add("behind", 2)
    add("behind too", 2)
    assert slow.status is not Status.WAITING
    assert refused(h) < 10
    for _ in range(50):
        h.step()
        late = refused(h)
    assert late == pytest.approx(30, abs=1)
    h.run()


def test_what_an_empty_queue_let_through_does_not_count(harness, never_ends):
    h = harness(max_running_requests=1, max_queued_requests=1, script=never_ends)
    h.add("quick", [1] * 100, max_new_tokens=1)
    h.run()
    full(h, 1)
    h.clock.now += 10
    assert refused(h) == 10


@pytest.mark.parametrize("name", ["max_queued_requests", "max_queued_tokens", "max_retractions"])
def test_a_limit_of_nothing_is_refused(name):
    with pytest.raises(ValueError, match=f"{name} is 0"):
        SchedulerConfig(context_len=10, vocab_size=10, **{name: 0})


class TestGivingWay:
    def ended(self, h, rid):
        h.step()
        reason = h.outputs[rid].finish_reason
        return None if reason is None else (reason.type, reason.status_code, reason.retry_after)

    def test_the_least_urgent_that_came_last_leaves_for_a_more_urgent_one(
        self, harness, never_ends
    ):
        h = harness(
            max_running_requests=1,
            max_queued_requests=3,
            enable_priority_scheduling=True,
            script=never_ends,
        )
        h.add("runs", [1], max_new_tokens=100)
        h.step()
        for rid, priority in (("low", 0), ("lower", -1), ("also lower", -1)):
            h.add(rid, [2], max_new_tokens=2, priority=priority)
        h.add("urgent", [3], max_new_tokens=2, priority=1)
        assert self.ended(h, "also lower") == ("abort", 503, 1)
        assert "a more urgent request took this one's place" in (
            h.outputs["also lower"].finish_reason.message
        )
        with pytest.raises(QueueFullError) as refused:
            h.add("as low", [3], max_new_tokens=2, priority=-1)
        assert refused.value.status_code == 503
        h.add("urgent too", [3], max_new_tokens=2, priority=1)
        assert self.ended(h, "lower")
        assert {h.run()[rid].finish_reason.type for rid in ("low", "urgent", "urgent too")} == {
            "length"
        }

    def test_several_leave_for_one_with_many_tokens_or_none_does(self, harness, never_ends):
        h = harness(
            max_running_requests=1,
            max_queued_tokens=20,
            enable_priority_scheduling=True,
            script=never_ends,
        )
        full(h, 2, length=8)
        h.add("equal", [2] * 4, max_new_tokens=2, priority=1)
        with pytest.raises(QueueFullError):
            h.add("too much", [3] * 17, max_new_tokens=2, priority=1)
        assert h.scheduler.num_waiting == 3
        h.add("much", [3] * 12, max_new_tokens=2, priority=1)
        assert [self.ended(h, rid) is not None for rid in ("waiting0", "waiting1", "equal")] == [
            True,
            True,
            False,
        ]
        h.run()

    def fair(self, harness, script):
        h = harness(
            max_running_requests=1,
            max_queued_requests=4,
            enable_tenant_fairness=True,
            script=script,
        )
        h.add("runs", [1], max_new_tokens=100, tenant="heavy")
        h.step()
        for i in range(4):
            h.add(f"heavy{i}", [2], max_new_tokens=2, tenant="heavy")
        return h

    def test_the_last_of_the_heaviest_tenant_leaves_until_both_have_as_many(
        self, harness, never_ends
    ):
        h = self.fair(harness, never_ends)
        for i in range(2):
            h.add(f"light{i}", [3], max_new_tokens=2, tenant="light")
        for rid in ("heavy3", "heavy2"):
            assert self.ended(h, rid) == ("abort", 429, 1)
        for tenant in ("heavy", "light"):
            with pytest.raises(QueueFullError) as refused:
                h.add("one more", [3], max_new_tokens=2, tenant=tenant)
            assert refused.value.status_code == 503
        out = h.run()
        kept = ("heavy0", "heavy1", "light0", "light1")
        assert all(len(out[rid].token_ids) == 2 for rid in kept)

    def test_who_has_more_than_its_share_hears_so(self, harness, never_ends):
        h = self.fair(harness, never_ends)
        with pytest.raises(QueueFullError, match="try again later") as alone:
            h.add("one more", [3], max_new_tokens=2, tenant="heavy")
        h.add("light", [3], max_new_tokens=2, tenant="light")
        with pytest.raises(QueueFullError, match="yours take more than their share") as heavy:
            h.add("one more", [3], max_new_tokens=2, tenant="heavy")
        assert (alone.value.status_code, heavy.value.status_code) == (503, 429)
        h.run()

    def test_without_fairness_tenants_make_no_difference(self, harness, never_ends):
        h = harness(max_running_requests=1, max_queued_requests=2, script=never_ends)
        full(h, 2)
        with pytest.raises(QueueFullError) as refused:
            h.add("other", [3], max_new_tokens=2, tenant="other")
        assert refused.value.status_code == 503
        h.run()
