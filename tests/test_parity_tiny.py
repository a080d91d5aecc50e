"""A tiny random Llama: whatever the engine does inside, its output is that of transformers."""

from __future__ import annotations

import itertools

import pytest
import torch

from phloem.server import Engine

NEW_TOKENS = 64
PROMPTS = [
    [5],
    [17, 3, 200, 41, 8, 8, 8, 99],
    list(range(1, 60)),
    [60 + i % 7 for i in range(100)],
    [60 + i % 7 for i in range(100)] + [9, 8, 7],
    [(i * i) % 250 + 1 for i in range(150)],
    [(i * i) % 250 + 1 for i in range(80)] + [(3 * i) % 250 + 1 for i in range(40)],
]
PARAMS = {
    "temperature": 0,
    "max_new_tokens": NEW_TOKENS,
    "top_logprobs": 3,
    "prompt_logprobs_from": 0,
}


@pytest.fixture(scope="module")
def reference(tiny_llama):
    """Tokens and logprobs of transformers: [(output_ids, output_logprobs, prompt_logprobs)]."""
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM.from_pretrained(tiny_llama, dtype=torch.float32)
    answers = []
    for prompt in PROMPTS:
        ids = torch.tensor([prompt])
        with torch.inference_mode():
            whole = model.generate(
                ids, max_new_tokens=NEW_TOKENS, do_sample=False, eos_token_id=0, pad_token_id=0
            )
            logprobs = model(whole).logits[0].log_softmax(-1)
        chosen = logprobs[torch.arange(whole.shape[1] - 1), whole[0, 1:]]
        answers.append(
            (
                whole[0, len(prompt) :].tolist(),
                chosen[len(prompt) - 1 :].tolist(),
                chosen[: len(prompt) - 1].tolist(),
            )
        )
    return answers


def check(results, reference):
    for result, (ids, logprobs, prompt_logprobs) in zip(results, reference, strict=True):
        assert result["output_ids"] == ids
        meta = result["meta_info"]
        assert [p for p, _ in meta["output_token_logprobs"]] == pytest.approx(logprobs, abs=1e-4)
        first, *rest = meta["input_token_logprobs"]
        assert first[0] is None
        assert [p for p, _ in rest] == pytest.approx(prompt_logprobs, abs=1e-4)


def check_nothing_is_held(engine):
    def look(scheduler):
        scheduler.manager.check()
        assert scheduler.manager.available == scheduler.manager.capacity

    engine._driver.call(look)


@pytest.mark.parametrize(
    ("chunk", "page_size", "overlap", "mixed"),
    list(itertools.product([-1, 16, 64], [1, 16], [False, True], [False, True])),
)
@pytest.mark.parametrize("pool", ["large", "small"])
def test_output_and_logprobs_equal_transformers(
    tiny_llama, reference, chunk, page_size, overlap, mixed, pool
):
    """Cold, then warm; in the small pool requests are retracted."""
    with Engine(
        model=str(tiny_llama),
        chunked_prefill_size=chunk,
        page_size=page_size,
        enable_overlap=overlap,
        enable_mixed_chunk=mixed,
        max_total_tokens=4096 if pool == "large" else 320,
        schedule_conservativeness=1.0 if pool == "large" else 0.05,
    ) as engine:
        cold = engine.generate(input_ids=PROMPTS, sampling_params=PARAMS)
        check(cold, reference)
        plain = {k: v for k, v in PARAMS.items() if k != "prompt_logprobs_from"}
        warm = engine.generate(input_ids=PROMPTS, sampling_params=plain)
        assert [r["output_ids"] for r in warm] == [ids for ids, _, _ in reference]
        check(engine.generate(input_ids=PROMPTS, sampling_params=PARAMS), reference)
        check_nothing_is_held(engine)
    if pool == "small":
        assert sum(r["meta_info"]["retractions"] for r in cold + warm) > 0
    else:
        assert warm[3]["meta_info"]["cached_tokens"] >= 99 // page_size * page_size


def test_one_by_one_equals_all_at_once(tiny_llama, reference):
    with Engine(model=str(tiny_llama)) as engine:
        check([engine.generate(input_ids=p, sampling_params=PARAMS) for p in PROMPTS], reference)


def test_two_equal_prompts_in_one_batch_end_with_equal_rows_and_lose_no_slot(tiny_llama):
    with Engine(model=str(tiny_llama)) as engine:
        seen = []

        def watch(scheduler):
            manager = scheduler.manager
            checkpoint = manager.checkpoint

            def watched(lease, tokens):
                checkpoint(lease, tokens)
                seen.append(manager.rows.table[lease.row, : lease.protected].tolist())

            manager.checkpoint = watched

        engine._driver.call(watch)
        a, b = engine.generate(input_ids=[PROMPTS[2], PROMPTS[2]], sampling_params=PARAMS)
        assert a["output_ids"] == b["output_ids"]
        assert len(seen) >= 2
        assert seen[0] == seen[1]
        check_nothing_is_held(engine)


def test_without_a_prefix_cache_the_output_is_the_same(tiny_llama, reference):
    with Engine(model=str(tiny_llama), disable_radix_cache=True) as engine:
        for _ in range(2):
            results = engine.generate(input_ids=PROMPTS, sampling_params=PARAMS)
            check(results, reference)
            assert all(r["meta_info"]["cached_tokens"] == 0 for r in results)
