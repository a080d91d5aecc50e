"""Prompts that become one vector and no tokens: the same queue, memory and loops as the others."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from phloem.scheduler import ContextLengthError, PauseMode, SamplingParams, StepResult

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8]
MODES = ["mean", "last"]


def add(h, rid, prompt, mode, **more):
    return h.add(rid, prompt, max_new_tokens=0, pooling=mode, **more)


@pytest.fixture
def check(pooled_alone):
    """Checks that a request ended with the vector of its prompt."""

    def same(ended, prompt, mode):
        assert ended.finish_reason.type == "stop"
        assert ended.token_ids == []
        assert ended.last.embedding.tobytes() == pooled_alone(prompt, mode).tobytes()

    return same


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("chunk", [None, 4])
def test_a_vector_is_the_same_cold_warm_and_in_chunks(harness, check, overlap, mode, chunk):
    h = harness(overlap=overlap, chunked_prefill_size=chunk, page_size=2)
    for rid in ("cold", "warm"):
        add(h, rid, PROMPT, mode)
        check(h.run()[rid], PROMPT, mode)
    assert h.outputs["cold"].last.cached_tokens == 0
    assert h.outputs["warm"].last.cached_tokens == (0 if mode == "mean" else 10)
    assert h.outputs["warm"].last.prompt_tokens == len(PROMPT)


def test_a_mean_leaves_its_prompt_to_the_cache(harness, overlap):
    h = harness(overlap=overlap)
    add(h, "pooled", PROMPT, "mean")
    h.run()
    h.add("generated", [*PROMPT, 7], max_new_tokens=2)
    assert h.run()["generated"].last.cached_tokens == len(PROMPT)


def test_no_step_decodes_a_pooled_prompt(harness, overlap):
    h = harness(overlap=overlap)
    add(h, "r", PROMPT, "last")
    h.run()
    assert [step.query_lens.tolist() for step in h.runner.steps] == [[len(PROMPT)]]
    assert not h.runner.steps[0].samples.any()


@pytest.mark.parametrize("mode", MODES)
def test_pooled_prompts_run_beside_others(harness, check, output_alone, overlap, mode):
    h = harness(overlap=overlap, chunked_prefill_size=8, enable_mixed_chunk=True)
    prompts = {f"p{i}": [*PROMPT[: 3 + i], 1 + i] for i in range(6)}
    for i, (rid, prompt) in enumerate(prompts.items()):
        add(h, rid, prompt, mode)
        h.add(f"g{i}", prompt, max_new_tokens=6)
    out = h.run()
    for i, (rid, prompt) in enumerate(prompts.items()):
        check(out[rid], prompt, mode)
        assert out[f"g{i}"].token_ids == output_alone(prompt, 6)


def test_a_pooled_prompt_may_be_aborted_between_its_chunks(harness, check, overlap):
    h = harness(overlap=overlap, chunked_prefill_size=4)
    request = add(h, "r", PROMPT, "mean")
    h.step_until(lambda: request.scheduled >= 8)
    assert h.scheduler.abort("r")
    add(h, "next", PROMPT[:6], "mean")
    out = h.run()
    assert out["r"].finish_reason.type == "abort"
    assert out["r"].last.embedding is None
    check(out["next"], PROMPT[:6], "mean")


def test_a_pooled_prompt_that_waits_too_long_ends(harness):
    h = harness(max_running_requests=1)
    h.add("first", PROMPT, max_new_tokens=30, ignore_eos=True)
    h.step()
    add(h, "r", PROMPT, "mean", queue_timeout=3.0)
    assert h.run()["r"].finish_reason.status_code == 503


@pytest.mark.parametrize("mode", MODES)
def test_a_pooled_prompt_that_loses_its_memory_begins_anew(harness, check, overlap, mode):
    h = harness(overlap=overlap, chunked_prefill_size=4)
    request = add(h, "r", PROMPT, mode)
    h.step_until(lambda: request.scheduled >= 8)
    h.scheduler.pause(PauseMode.RETRACT)
    h.step_until(lambda: request.lease is None)
    h.scheduler.resume()
    check(h.run()["r"], PROMPT, mode)


def test_a_runner_that_pools_nothing_fails_the_request_alone(harness):
    h = harness()
    add(h, "r", PROMPT, "mean")
    h.add("other", [8, *PROMPT], max_new_tokens=3)
    batch = h.scheduler.schedule()
    h.scheduler.launch(batch)
    tokens, counts = np.array([7], np.int32), np.array([0, 1], np.int32)
    h.scheduler.process(batch, StepResult(tokens, counts))
    (failed,) = [o for o in h.scheduler.take_outputs() if o.finish_reason is not None]
    assert failed.rid == "r"
    assert "pools no hidden states" in failed.finish_reason.message


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"pooling": "max", "max_new_tokens": 0}, 'pooling is \'max\': give "mean" or "last"'),
        ({"pooling": "mean", "max_new_tokens": 4}, "max_new_tokens is 4"),
        ({"pooling": "mean"}, "max_new_tokens is None"),
    ],
)
def test_what_cannot_be_pooled_is_refused(harness, fields, why):
    with pytest.raises(ValueError, match=why):
        harness().add("r", PROMPT, **fields)


def test_a_prompt_that_could_never_fit_is_refused(harness, check):
    h = harness(context_len=20)
    params = SamplingParams(max_new_tokens=0)
    with pytest.raises(ContextLengthError):
        h.scheduler.add("r", [1] * 21, params, pooling="mean")
    add(h, "fits", [1] * 20, "mean")
    check(h.run()["fits"], [1] * 20, "mean")


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_random_traffic_of_both_kinds_keeps_every_vector_and_every_slot(harness, check, data):
    h = harness(
        overlap=data.draw(st.booleans()),
        page_size=data.draw(st.sampled_from([1, 4])),
        capacity=data.draw(st.sampled_from([80, 200])),
        chunked_prefill_size=data.draw(st.sampled_from([None, 8])),
        enable_mixed_chunk=data.draw(st.booleans()),
        max_running_requests=data.draw(st.sampled_from([1, 3, 16])),
        clip_max_new_tokens=4,
        context_len=60,
    )
    pooled, aborted = {}, set()
    for i in range(data.draw(st.integers(1, 12))):
        rid, prompt = f"r{i}", [1 + i % 3] * data.draw(st.integers(1, 30)) + [1 + i]
        mode = data.draw(st.sampled_from([None, *MODES]))
        if mode is None:
            h.add(rid, prompt, max_new_tokens=data.draw(st.integers(0, 20)))
        else:
            add(h, rid, prompt, mode)
            pooled[rid] = (prompt, mode)
        for _ in range(data.draw(st.integers(0, 3))):
            h.step()
        if data.draw(st.integers(0, 5)) == 0 and h.scheduler.abort(rid):
            aborted.add(rid)
    out = h.run()
    for rid, (prompt, mode) in pooled.items():
        if rid not in aborted:
            check(out[rid], prompt, mode)
