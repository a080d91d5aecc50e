"""Rows and steps that fail: they end their own requests and leave nothing behind."""

from __future__ import annotations

from phloem.scheduler import ScriptedRowError

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3]


def test_a_bad_row_ends_alone_and_leaves_nothing_in_the_cache(
    harness, output_alone, overlap, never_ends
):
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
    run, fail = h.runner._run, [True]

    def failing(step):
        if fail.pop() if fail else False:
            raise RuntimeError("device lost")
        return run(step)

    h.runner._run = failing
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
