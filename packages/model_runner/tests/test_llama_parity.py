"""The model against transformers, in every way in which a prompt can be cut into steps."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from phloem.kernels import get_ops
from phloem.model_runner import load_model
from phloem.model_runner.batch import prepare
from phloem.scheduler import RELAYED, SamplingParams

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
KINDS = {
    "untied": {},
    "tied": {"tie_word_embeddings": True},
    "llama3 rope": {"rope_parameters": LLAMA3_ROPE},
    "linear rope": {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "wide heads": {"head_dim": 32},
    "no shared heads": {"num_key_value_heads": 4},
    "sharded": {"shards": "100KB"},
    "mistral": {
        "model_class": MistralForCausalLM,
        "config_class": MistralConfig,
        "sliding_window": None,
    },
    "qwen2": {"model_class": Qwen2ForCausalLM, "config_class": Qwen2Config},
}


@pytest.fixture(scope="module", params=KINDS, ids=lambda kind: kind.replace(" ", "-"))
def kind(request, save_tiny):
    tiny = save_tiny(
        **{"config_class": LlamaConfig, "model_class": LlamaForCausalLM, **KINDS[request.param]}
    )
    return tiny.reference, load_model(tiny.folder)


def prompts(*lengths, seed=1):
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 256, n).tolist() for n in lengths]


def expected_logits(reference, ids):
    with torch.inference_mode():
        return reference(torch.tensor([ids])).logits[0].float()


def forward(driver, model, *parts):
    """Logits at every token of a step."""
    with torch.inference_mode():
        prepared = prepare(driver.batch(*parts), driver.table, get_ops(), model.attention_spec)
        return model.logits(model.forward(prepared.forward, driver.pool))


def close(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_a_prompt_in_one_step_gives_the_logits_of_transformers(kind, drive):
    reference, model = kind
    (prompt,) = prompts(75)
    close(forward(drive(model), model, (2, prompt, 75)), expected_logits(reference, prompt))


def test_chunks_and_decodes_give_the_logits_of_the_whole(kind, drive):
    reference, model = kind
    (text,) = prompts(60)
    driver = drive(model)
    cuts = [0, 16, 32, 48, 55, *range(56, 61)]
    parts = [forward(driver, model, (4, text[start:end], end)) for start, end in pairwise(cuts)]
    close(torch.cat(parts), expected_logits(reference, text))


def test_a_batch_of_chunks_and_decodes_gives_each_row_its_own_logits(kind, drive):
    reference, model = kind
    texts = prompts(50, 33, 21, 64, 9)
    done = [49, 32, 5, 0, 8]
    driver = drive(model)
    for row, (text, n) in enumerate(zip(texts, done)):
        if n:
            forward(driver, model, (row, text[:n], n))
    order = [3, 0, 2, 4, 1]
    found = forward(driver, model, *[(r, texts[r][done[r] :], len(texts[r])) for r in order])
    expected = [expected_logits(reference, texts[r])[done[r] :] for r in order]
    close(found, torch.cat(expected))


@pytest.mark.parametrize("overlap", [False, True])
def test_64_greedy_tokens_equal_those_of_transformers(kind, drive, overlap):
    reference, model = kind
    (prompt,) = prompts(20)
    driver = drive(model, overlap=overlap)
    steps = [driver.enqueue((1, prompt, 20))]
    steps += [driver.enqueue((1, [RELAYED], 21 + i)) for i in range(63)]
    found = [driver.runner.result(step).token_ids.tolist() for step in steps]
    ids = torch.tensor([prompt])
    expected = reference.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=64,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    assert found == [[token] for token in expected[0, 20:].tolist()]


def test_prompt_logprobs_come_from_the_untouched_distribution(tiny, tiny_model, drive):
    from phloem.scheduler import PromptLogprobRequest

    (prompt,) = prompts(40)
    expected = torch.log_softmax(expected_logits(tiny.reference, prompt), -1)
    driver = drive(tiny_model)
    driver.run((0, prompt[:10], 10), samples=[False])
    asked = PromptLogprobRequest(1, 2, np.array(prompt[13:40], np.int32), 3)
    found = driver.run(
        (3, [5, 6], 2),
        (0, prompt[10:], 40),
        params=SamplingParams(temperature=0.0, top_p=0.1, logit_bias={0: 50.0}),
        asked=(asked,),
    ).logprobs.prompt
    assert list(found) == [1]
    at = torch.arange(12, 39)
    close(torch.from_numpy(found[1].logprobs), expected[at, torch.tensor(prompt[13:40])])
    for entry, row in zip(found[1].top, expected[at], strict=True):
        values, ids = row.topk(3)
        assert entry.token_ids.tolist() == ids.tolist()
        close(torch.from_numpy(entry.logprobs), values)


def test_long_prompts_get_their_logprobs_in_pieces(tiny, tiny_model, drive, monkeypatch):
    from phloem.model_runner import prompt_logprobs
    from phloem.scheduler import PromptLogprobRequest

    monkeypatch.setattr(prompt_logprobs, "ROWS_AT_ONCE", 7)
    (prompt,) = prompts(40)
    expected = torch.log_softmax(expected_logits(tiny.reference, prompt), -1)
    asked = PromptLogprobRequest(0, 0, np.array(prompt[1:], np.int32), 0)
    found = drive(tiny_model).run((0, prompt, 40), asked=(asked,)).logprobs.prompt[0]
    close(torch.from_numpy(found.logprobs), expected[torch.arange(39), torch.tensor(prompt[1:])])
    assert found.top == ()


def test_bfloat16_stays_near_float32(tiny, drive):
    model = load_model(tiny.folder, dtype="bfloat16")
    (prompt,) = prompts(30)
    driver = drive(model)
    first = forward(driver, model, (0, prompt[:20], 20))
    found = torch.cat((first, forward(driver, model, (0, prompt[20:], 30))))
    expected = expected_logits(tiny.reference, prompt)
    assert found.dtype == torch.float32
    assert torch.nn.functional.cosine_similarity(found, expected).min() > 0.99
