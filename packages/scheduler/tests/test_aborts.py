"""Aborts, in every state that a request can be in; case AB-07 for those that have none."""

from __future__ import annotations

import pytest

from phloem.scheduler import PauseMode, Status

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]
ALL_TOGETHER = {"max_running_requests": 2}


def abort(h, request):
    """Abort twice: it counts once, and is told once."""
    assert h.scheduler.abort(request.rid)
    assert not h.scheduler.abort(request.rid)
    assert request.status is Status.FINISHED
    h.step()
    reason = h.outputs[request.rid].finish_reason
    assert (reason.type, reason.status_code) == ("abort", None)
    assert not h.scheduler.abort(request.rid)


def test_waiting(harness, output_alone, overlap):
    h = harness(overlap=overlap, max_running_requests=1)
    h.add("runs", PROMPT, max_new_tokens=20)
    h.step()
    waits = h.add("waits", PROMPT, max_new_tokens=20)
    abort(h, waits)
    assert h.scheduler.num_waiting == 0
    assert h.run()["runs"].token_ids == output_alone(PROMPT, 20)


def test_before_anything_ran(harness, overlap):
    h = harness(overlap=overlap)
    abort(h, h.add("a", PROMPT, max_new_tokens=20))
    assert h.loop.idle
    assert not h.runner.steps


def test_in_the_middle_of_a_chunked_prefill(harness, output_alone, overlap):
    h = harness(overlap=overlap, chunked_prefill_size=4, **ALL_TOGETHER)
    long = h.add("long", PROMPT * 8, max_new_tokens=4)
    h.add("next", PROMPT, max_new_tokens=4)
    h.step_until(lambda: 8 <= long.scheduled < 60)
    assert long.status is Status.PREFILL
    abort(h, long)
    assert h.run()["next"].token_ids == output_alone(PROMPT, 4)


def test_running(harness, output_alone, overlap, never_ends):
    h = harness(overlap=overlap, script=never_ends)
    a = h.add("a", PROMPT, max_new_tokens=20)
    h.add("b", PROMPT, max_new_tokens=20)
    h.step_until(lambda: a.num_output == 5)
    abort(h, a)
    out = h.run()
    assert out["a"].token_ids == output_alone(PROMPT, 20, never_ends)[:5]
    assert out["b"].token_ids == output_alone(PROMPT, 20, never_ends)


def test_in_flight_keeps_its_memory_until_the_step_is_over(harness, never_ends):
    h = harness(overlap=True, script=never_ends)
    a = h.add("a", PROMPT, max_new_tokens=20)
    h.step_until(lambda: a.num_output == 3)
    assert a.in_flight == 1
    assert h.scheduler.abort("a")
    assert a.lease is not None
    h.step()
    assert a.lease is None
    assert h.run()["a"].last.completion_tokens == 3


def test_retracted(harness, output_alone, overlap, never_ends):
    h = harness(capacity=60, overlap=overlap, script=never_ends, clip_max_new_tokens=2)
    requests = [h.add(rid, [token] * 8, max_new_tokens=40) for rid, token in (("a", 1), ("b", 2))]
    h.step_until(lambda: any(r.retractions for r in requests))
    back, stays = sorted(requests, key=lambda r: -r.retractions)
    abort(h, back)
    out = h.run()
    assert len(out[stays.rid].token_ids) == 40
    assert (
        out[back.rid].token_ids
        == output_alone(back.prompt_ids.tolist(), 40, never_ends)[: len(out[back.rid].token_ids)]
    )


@pytest.mark.parametrize("mode", [PauseMode.RETRACT, PauseMode.IN_PLACE])
def test_paused(harness, overlap, never_ends, mode):
    h = harness(overlap=overlap, script=never_ends)
    a = h.add("a", PROMPT, max_new_tokens=20)
    h.step_until(lambda: a.num_output == 3)
    h.scheduler.pause(mode)
    h.step_until(lambda: h.loop.idle)
    abort(h, a)
    assert h.scheduler.num_active == 0
    h.scheduler.resume()
    h.run()


def test_just_finished_and_unknown(harness, overlap):
    """Case AB-07."""
    h = harness(overlap=overlap)
    done = h.add("done", PROMPT, max_new_tokens=2)
    h.step_until(lambda: done.status is Status.FINISHED)
    for rid in ("done", "done", "never"):
        assert not h.scheduler.abort(rid)
    assert h.run()["done"].finish_reason.type in ("stop", "length")


def test_all_at_once_leave_nothing(harness, overlap, never_ends):
    h = harness(overlap=overlap, chunked_prefill_size=16, max_running_requests=4, script=never_ends)
    for i in range(9):
        h.add(f"r{i}", [i + 1] * 12, max_new_tokens=30)
    for _ in range(6):
        h.step()
    for i in range(9):
        h.scheduler.abort(f"r{i}")
    out = h.run()
    assert {o.finish_reason.type for o in out.values()} == {"abort"}
    assert (h.scheduler.num_active, h.scheduler.num_waiting) == (0, 0)
