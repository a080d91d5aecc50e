"""What happens when memory runs out: who gives way, and how it comes back."""

from __future__ import annotations

from phloem.scheduler import Status


def add_and_step(h, rid, token, steps=3):
    """A request that has some output more than the next one will have."""
    request = h.add(rid, [token] * 8, max_new_tokens=45)
    for _ in range(steps):
        h.step()
    return request


def test_a_pool_too_small_for_all_retracts_and_still_answers_all(
    harness, output_alone, overlap, never_ends
):
    """Case ME-01: what a retracted request finds of its own is no hit."""
    h = harness(
        overlap=overlap, capacity=70, context_len=60, script=never_ends, clip_max_new_tokens=4
    )
    prompts = {f"r{i}": [i + 1] * 8 for i in range(6)}
    for rid, prompt in prompts.items():
        h.add(rid, prompt, max_new_tokens=25)
    out = h.run()
    assert h.scheduler.num_retractions == sum(o.last.retractions for o in out.values()) > 0
    for rid, prompt in prompts.items():
        assert out[rid].token_ids == output_alone(prompt, 25, never_ends)
        assert out[rid].last.cached_tokens == 0


def test_a_retracted_request_goes_on_before_better_matches(harness, never_ends):
    h = harness(capacity=60, schedule_policy="lpm", script=never_ends, clip_max_new_tokens=2)
    stays = h.add("stays", [1] * 20, max_new_tokens=30)
    h.step_until(lambda: stays.num_output == 3)
    back = h.add("back", [2] * 8, max_new_tokens=30)
    h.step_until(lambda: back.retractions)
    # There is room for it at once, and all but its last token is cached and in use.
    late = h.add("late", [*[1] * 20, 3], max_new_tokens=2)
    h.step_until(lambda: late.status is not Status.WAITING)
    assert back.status is not Status.WAITING
    assert h.run()["late"].last.cached_tokens == 20


def test_the_shortest_output_gives_way(harness, never_ends):
    h = harness(capacity=60, script=never_ends, clip_max_new_tokens=2)
    old = add_and_step(h, "old", 1)
    new = add_and_step(h, "new", 2)
    h.step_until(lambda: old.retractions or new.retractions)
    assert (old.retractions, new.retractions) == (0, 1)
    h.run()


def test_of_equal_outputs_the_longest_prompt_gives_way(harness, never_ends):
    h = harness(capacity=60, script=never_ends, clip_max_new_tokens=2)
    requests = [h.add(f"r{n}", [1 + n] * n, max_new_tokens=40) for n in (8, 12, 10)]
    h.step_until(lambda: any(r.retractions for r in requests))
    assert [r.retractions for r in requests] == [0, 1, 0]
    h.run()


def test_a_retracted_request_waits_in_front_and_counts_as_running_no_more(
    harness, overlap, never_ends
):
    h = harness(
        capacity=60,
        max_running_requests=2,
        overlap=overlap,
        script=never_ends,
        clip_max_new_tokens=2,
    )
    stays = h.add("stays", [1] * 8, max_new_tokens=40)
    back = h.add("back", [2] * 9, max_new_tokens=40)
    h.step()
    small = h.add("small", [3] * 2, max_new_tokens=2)
    h.step_until(lambda: stays.retractions or back.retractions)
    assert (h.scheduler.num_active, h.scheduler.num_waiting) == (1, 2)
    h.step_until(lambda: small.status is not Status.WAITING)
    assert back.status is not Status.WAITING
    out = h.run()
    assert [len(out[rid].token_ids) for rid in ("stays", "back", "small")] == [40, 40, 2]


def test_of_two_retracted_requests_the_one_with_more_output_is_in_front(harness, never_ends):
    # So little prefill that both cannot come back in one step.
    h = harness(capacity=60, max_prefill_tokens=8, script=never_ends, clip_max_new_tokens=2)
    longest, longer, short = (
        add_and_step(h, rid, token) for token, rid in enumerate(("longest", "longer", "short"), 1)
    )
    h.step_until(lambda: short.status is longer.status is Status.WAITING)
    assert longest.status is Status.RUNNING
    assert longer.num_output > short.num_output > 0
    h.step_until(lambda: not (short.status is longer.status is Status.WAITING))
    assert (longer.status, short.status) == (Status.RUNNING, Status.WAITING)
    h.run()


def test_the_last_one_that_does_not_fit_ends_with_an_error_and_the_next_runs(
    harness, overlap, never_ends
):
    h = harness(
        capacity=60,
        max_running_requests=1,
        rows=2,
        overlap=overlap,
        script=never_ends,
        clip_max_new_tokens=2,
    )
    # Somebody else uses the same memory.
    foreign = h.manager.open([9] * 40, ("foreign",))
    h.manager.extend(foreign, 40)
    h.add("greedy", [1] * 8, max_new_tokens=30)
    h.add("next", [2] * 8, max_new_tokens=4)
    h.step_until(lambda: h.loop.idle)
    h.manager.close(foreign, None)
    out = h.run()
    reason = out["greedy"].finish_reason
    assert (reason.type, reason.status_code) == ("error", 500)
    assert "the KV cache holds 60 tokens" in reason.message
    assert len(out["next"].token_ids) == 4


def test_who_finds_more_when_it_comes_back_says_what_it_found_at_first(harness, never_ends):
    """Case ME-03, in the scheduler: cached tokens stay between none and the prompt."""
    h = harness(capacity=60, script=never_ends, clip_max_new_tokens=2)
    requests = [add_and_step(h, f"r{token}", token, steps=1) for token in (1, 2)]
    h.step_until(lambda: any(request.retractions for request in requests))
    (back,) = (request for request in requests if request.retractions)
    out = h.run()[back.rid]
    assert (out.last.cached_tokens, out.last.completion_tokens) == (0, 45)
    h.add("again", back.prompt_ids, max_new_tokens=2)
    assert h.run()["again"].last.cached_tokens == 7
