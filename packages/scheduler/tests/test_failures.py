"""Rows and steps that fail: they end their own requests and leave nothing behind."""

from __future__ import annotations

import numpy as np

from phloem.scheduler import ScriptedRowError, StepResult

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3]


def fail_at(h, step):
    """Let the model raise in the nth step from now."""
    run, last = h.runner._run, len(h.runner.steps) + step

    def failing(given):
        if len(h.runner.steps) == last:
            raise RuntimeError("device lost")
        return run(given)

    h.runner._run = failing


def test_a_bad_row_ends_alone_and_leaves_nothing_in_the_cache(
    harness, output_alone, overlap, never_ends
):
    """Case SC-10."""

    def script(history):
        if history[0] == 40 and len(history) > 13:
            raise ScriptedRowError("logits are not finite")
        return never_ends(history)

    h = harness(overlap=overlap, script=script)
    h.add("good", PROMPT, max_new_tokens=12)
    h.add("bad", [40] * 12, max_new_tokens=12)
    out = h.run()
    assert out["bad"].finish_reason.type == "error"
    assert "not finite" in out["bad"].finish_reason.message
    assert out["good"].token_ids == output_alone(PROMPT, 12, never_ends)


def test_a_bad_first_row_is_not_published(harness, overlap):
    def script(history):
        raise ScriptedRowError("logits are not finite")

    h = harness(overlap=overlap, script=script)
    h.add("bad", PROMPT, max_new_tokens=12)
    h.run()
    assert h.manager.tree.sizes.total == 0


def test_a_step_that_raises_ends_its_requests_and_the_engine_goes_on(
    harness, output_alone, overlap
):
    h = harness(overlap=overlap)
    fail_at(h, step=1)
    h.add("a", PROMPT, max_new_tokens=5)
    h.run()
    assert "device lost" in h.outputs["a"].finish_reason.message
    h.add("b", PROMPT, max_new_tokens=5)
    assert h.run()["b"].token_ids == output_alone(PROMPT, 5)


def test_a_forward_that_raises_at_once_ends_its_requests(harness, overlap):
    h = harness(overlap=overlap)
    forward = h.runner.forward
    h.runner.forward = lambda batch: (_ for _ in ()).throw(MemoryError("no room"))
    h.add("a", PROMPT, max_new_tokens=5)
    h.run()
    assert "no room" in h.outputs["a"].finish_reason.message
    h.runner.forward = forward
    h.add("b", PROMPT, max_new_tokens=5)
    assert h.run()["b"].finish_reason.type in ("stop", "length")


def test_a_chunk_that_fails_is_not_published_and_those_before_it_were_already(harness, overlap):
    h = harness(overlap=overlap, chunked_prefill_size=8)
    fail_at(h, step=2)
    h.add("a", list(range(1, 29)), max_new_tokens=4)
    assert h.run()["a"].finish_reason.type == "error"
    assert h.manager.tree.sizes.total == 8


def test_output_before_a_failed_step_is_not_published(harness, overlap, never_ends):
    h = harness(overlap=overlap, script=never_ends)
    fail_at(h, step=5)
    h.add("a", PROMPT, max_new_tokens=12)
    out = h.run()["a"]
    assert (len(out.token_ids), out.finish_reason.status_code) == (4, 500)
    assert h.manager.tree.sizes.total == len(PROMPT)
    h.add("again", PROMPT + out.token_ids, max_new_tokens=2)
    assert h.run()["again"].last.cached_tokens == len(PROMPT)


def test_output_before_a_failed_row_is_not_published(harness, overlap, never_ends):
    def script(history):
        if len(history) == len(PROMPT) + 4:
            raise ScriptedRowError("logits are not finite")
        return never_ends(history)

    h = harness(overlap=overlap, script=script)
    h.add("a", PROMPT, max_new_tokens=12)
    out = h.run()["a"]
    assert (len(out.token_ids), out.finish_reason.status_code) == (4, 500)
    assert h.manager.tree.sizes.total == len(PROMPT)


def test_a_token_of_a_row_that_failed_is_not_taken(harness, never_ends):
    h = harness(script=never_ends)
    for rid in ("good", "bad"):
        h.add(rid, PROMPT, max_new_tokens=12)
    h.step()
    batch = h.scheduler.schedule()
    counts = h.scheduler.launch(batch).query_lens
    tokens = np.array([7, 8], np.int32)
    h.scheduler.process(batch, StepResult(tokens, counts, row_errors={1: "not finite"}))
    news = {o.rid: (o.token_ids, o.finish_reason) for o in h.scheduler.take_outputs()}
    assert news["good"] == ((7,), None)
    assert (news["bad"][0], news["bad"][1].message) == ((), "not finite")
