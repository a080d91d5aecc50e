"""Time limits of requests, by a clock that only the tests move."""

from __future__ import annotations

import pytest

from phloem.scheduler import PauseMode, SchedulerConfig, Status
from phloem.scheduler.deadlines import TOTAL, Deadlines

PROMPT = [3, 1, 4, 1, 5]


def ended(h, rid):
    reason = h.outputs[rid].finish_reason
    return None if reason is None else (reason.type, reason.status_code)


def test_a_running_request_ends_at_its_limit_with_what_it_has(
    harness, output_alone, overlap, never_ends
):
    h = harness(overlap=overlap, script=never_ends)
    h.add("limited", PROMPT, max_new_tokens=100, timeout=10)
    h.add("other", PROMPT, max_new_tokens=100)
    out = h.run()
    assert ended(h, "limited") == ("abort", 408)
    assert "did not end within its 10 s" in out["limited"].finish_reason.message
    got = out["limited"].token_ids
    assert 5 < len(got) <= 10
    assert got == output_alone(PROMPT, 100, never_ends)[: len(got)]
    assert len(out["other"].token_ids) == 100
    assert out["limited"].last.timings.finished == 10


def test_a_waiting_request_ends_at_its_queue_limit(harness, never_ends):
    h = harness(max_running_requests=1, script=never_ends)
    h.add("running", PROMPT, max_new_tokens=100)
    h.step()
    h.add("waits", PROMPT, max_new_tokens=2, queue_timeout=5)
    h.step_until(lambda: ended(h, "waits"))
    assert h.clock.now == 6
    reason = h.outputs["waits"].finish_reason
    assert (reason.type, reason.status_code) == ("abort", 503)
    assert "waited for 5 s and was not let in" in reason.message
    assert reason.retry_after >= 1
    assert h.scheduler.num_waiting == 0
    assert len(h.run()["running"].token_ids) == 100


def test_who_was_let_in_is_not_bound_by_the_queue_limit(harness, never_ends):
    h = harness(capacity=60, script=never_ends, clip_max_new_tokens=2, queue_timeout=3)
    requests = [h.add(f"r{i}", [i + 1] * 8, max_new_tokens=40) for i in range(2)]
    h.run()
    assert sum(request.retractions for request in requests) > 0
    assert [len(h.outputs[r.rid].token_ids) for r in requests] == [40, 40]


def test_who_was_let_in_and_waits_again_is_not_bound_by_it_either(
    harness, output_alone, overlap, never_ends
):
    h = harness(overlap=overlap, script=never_ends)
    a = h.add("a", PROMPT, max_new_tokens=20, queue_timeout=20)
    # Its limit is due first, so that nobody looks at the other one before "a" waits again.
    h.add("first", PROMPT, max_new_tokens=90, timeout=10)
    h.step_until(lambda: a.num_output == 2)
    h.scheduler.pause(PauseMode.RETRACT)
    h.step_until(lambda: h.loop.idle)
    assert a.status is Status.WAITING
    h.clock.now += 100
    h.step()
    assert ended(h, "first") == ("abort", 408)
    assert a.status is Status.WAITING
    assert h.scheduler.due_in() is None
    h.scheduler.resume()
    assert h.run()["a"].token_ids == output_alone(PROMPT, 20, never_ends)


def test_the_limit_of_the_whole_counts_while_waiting_and_after_a_retraction(harness, never_ends):
    h = harness(capacity=60, script=never_ends, clip_max_new_tokens=2)
    h.add("stays", [1] * 8, max_new_tokens=45)
    for _ in range(3):
        h.step()
    back = h.add("back", [2] * 8, max_new_tokens=45, timeout=30)
    h.step_until(lambda: back.retractions)
    h.step_until(lambda: back.status is Status.FINISHED)
    assert h.outputs["back"].last.timings.finished == 33
    assert ended(h, "back") == ("abort", 408)
    h.run()


def test_the_defaults_hold_for_requests_that_name_no_limit(harness, never_ends):
    h = harness(script=never_ends, request_timeout=10)
    h.add("default", PROMPT, max_new_tokens=100)
    h.add("own", PROMPT, max_new_tokens=100, timeout=20)
    out = h.run()
    assert (len(out["default"].token_ids), len(out["own"].token_ids)) == (9, 19)


def test_a_request_that_ends_in_time_hears_nothing_of_its_limits(harness, output_alone, overlap):
    h = harness(overlap=overlap)
    h.add("a", PROMPT, max_new_tokens=8, timeout=50, queue_timeout=50)
    out = h.run()["a"]
    assert out.token_ids == output_alone(PROMPT, 8)
    assert h.scheduler.due_in() is None


def test_a_reused_id_has_no_limit_of_the_one_before(harness, never_ends):
    h = harness(script=never_ends)
    h.add("a", PROMPT, max_new_tokens=2, timeout=10)
    h.run()
    h.add("a", PROMPT, max_new_tokens=50)
    assert len(h.run()["a"].token_ids) == 50


def test_a_limit_that_is_over_in_a_chunked_prefill_ends_it(harness, overlap):
    h = harness(overlap=overlap, chunked_prefill_size=4)
    h.add("a", [1] * 60, max_new_tokens=4, timeout=5)
    h.run()
    assert ended(h, "a") == ("abort", 408)
    assert h.outputs["a"].token_ids == []


def test_the_next_limit_says_how_long_a_driver_may_sleep(harness):
    h = harness()
    assert h.scheduler.due_in() is None
    h.scheduler.pause(PauseMode.IN_PLACE)
    h.add("later", PROMPT, timeout=20)
    h.add("sooner", PROMPT, queue_timeout=7)
    assert h.scheduler.due_in() == 7
    assert h.loop.idle
    h.clock.now += 6
    assert h.scheduler.due_in() == 1
    h.clock.now += 5
    assert h.scheduler.due_in() == 0


@pytest.mark.parametrize("mode", PauseMode)
def test_a_limit_fires_though_nothing_runs(harness, overlap, mode):
    """A driver that has nothing to do steps when `due_in` says so."""
    h = harness(overlap=overlap)
    h.scheduler.pause(mode)
    h.add("a", PROMPT, timeout=7)
    h.clock.now = 6
    h.loop.step()
    assert ended(h, "a") is None
    h.step()
    assert ended(h, "a") == ("abort", 408)
    assert h.loop.idle
    assert h.scheduler.due_in() is None


def test_limits_of_ended_requests_are_forgotten_in_bulk(harness):
    h = harness()
    deadlines = Deadlines()
    for i in range(500):
        request = h.add(f"r{i}", PROMPT, max_new_tokens=1)
        deadlines.add(request, TOTAL, 1e6)
        h.scheduler.abort(request.rid)
        assert len(deadlines._heap) <= 64


def test_limits_that_stay_after_the_others_were_forgotten_are_due_in_order(harness):
    h = harness()
    deadlines = Deadlines()
    # The first to be due are forgotten, and those behind them were added in no order.
    seconds = [float(1 + i * 37 % 101) for i in range(64)]
    ended = [i for i in range(64) if seconds[i] <= 40]
    requests = [h.add(f"r{i}", PROMPT, max_new_tokens=1) for i in range(64)]
    for request, limit in zip(requests, seconds, strict=True):
        deadlines.add(request, TOTAL, limit)
    for i in ended:
        h.scheduler.abort(requests[i].rid)
    deadlines.add(h.add("last", PROMPT, max_new_tokens=1), TOTAL, 1000.0)
    left = sorted(limit for limit in seconds if limit > 40)
    for limit in [*left, 1000.0]:
        assert deadlines.next == limit
        (over,) = deadlines.overdue(limit, 1.0)
        assert over[0].arrived + limit == limit


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), True, "5"])
def test_what_is_no_time_is_refused(harness, seconds):
    with pytest.raises(ValueError, match="queue_timeout is"):
        harness().add("a", PROMPT, queue_timeout=seconds)
    with pytest.raises(ValueError, match="request_timeout is"):
        SchedulerConfig(context_len=10, vocab_size=10, request_timeout=seconds)
