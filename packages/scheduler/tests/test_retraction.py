"""What happens when memory runs out: who gives way, and how it comes back."""

from __future__ import annotations


def test_a_pool_too_small_for_all_retracts_and_still_answers_all(
    harness, output_alone, overlap, never_ends
):
    h = harness(
        overlap=overlap, capacity=70, context_len=60, script=never_ends, clip_max_new_tokens=4
    )
    prompts = {f"r{i}": [i + 1] * 8 for i in range(6)}
    for rid, prompt in prompts.items():
        h.add(rid, prompt, max_new_tokens=25)
    out = h.run()
    assert sum(o.last.retractions for o in out.values()) > 0
    for rid, prompt in prompts.items():
        assert out[rid].token_ids == output_alone(prompt, 25, never_ends)
        assert out[rid].last.cached_tokens == 0


def test_a_retracted_request_goes_on_before_better_matches(harness, never_ends):
    h = harness(capacity=60, schedule_policy="lpm", script=never_ends, clip_max_new_tokens=2)
    h.add("warm", [1] * 20, max_new_tokens=1)
    h.run()
    h.add("a", [2] * 8, max_new_tokens=30)
    h.add("b", [3] * 8, max_new_tokens=30)
    ends = []
    arrived = False
    while not h.loop.idle:
        ends += [o.rid for o in h.step() if o.finish_reason]
        if not arrived and h.scheduler.num_waiting:
            h.add("late", [1] * 20, max_new_tokens=20)
            arrived = True
    assert arrived
    assert max(h.outputs[rid].last.retractions for rid in "ab") > 0
    assert ends[-1] == "late"
