"""SmolLM2 in fp32: 64 greedy tokens on varied prompts equal those of transformers."""

from __future__ import annotations

import pytest
import torch

from phloem.server import Engine

pytestmark = pytest.mark.slow

NEW_TOKENS = 64
LONG = (
    "The old harbor lay quiet in the morning. Boats came in with fish and went out with bread. "
    "A captain told the writer that every winter the same storm came back, and nobody believed it. "
)
TEXTS = [
    "The capital of France is",
    "Once upon a time",
    "1, 2, 3, 5, 8, 13,",
    "Die Hauptstadt von Deutschland ist",
    "La capitale de l'Italie est",
    "日本の首都は",
    "Столица России —",
    "عاصمة مصر هي",
    "def fibonacci(n):\n    ",
    "#include <stdio.h>\nint main(void) {\n",
    "SELECT name, COUNT(*) FROM users",
    "<html>\n<head>\n<title>",
    "Water boils at 100 degrees Celsius because",
    "🙂🎉 The emoji above mean",
    "   leading spaces and\ttabs\n\n\n",
    LONG * 6 + "In short,",
    LONG * 52,
]
CHATS = [
    "What is the capital of France?",
    "Write a haiku about rivers.",
    "Explain how a binary search works, with Python code.",
]


@pytest.fixture(scope="module")
def engine(smollm2):
    with Engine(model=str(smollm2), quantization="none") as made:
        yield made


@pytest.fixture(scope="module")
def prompts(engine):
    made = [engine.tokenizer.encode(text) for text in TEXTS]
    made += [engine.tokenizer.encode_chat([{"role": "user", "content": c}]) for c in CHATS]
    assert len(made) == 20
    assert max(map(len, made)) > 2000
    return made


PARAMS = {"temperature": 0, "max_new_tokens": NEW_TOKENS, "top_logprobs": 0}


@pytest.fixture(scope="module")
def together(engine, prompts):
    return engine.generate(input_ids=prompts, sampling_params=PARAMS)


@pytest.fixture(scope="module")
def model(smollm2):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32)


@pytest.fixture(scope="module")
def reference(model, prompts, together):
    """What transformers chooses greedily after each prompt, with logprobs.

    One forward over a prompt and our output tells it: while ours has been its choice so far, what
    it gives at the next position is its own next choice.
    """
    answers = []
    for prompt, result in zip(prompts, together, strict=True):
        ours = result["output_ids"]
        with torch.inference_mode():
            whole = torch.tensor([prompt + ours[:-1]])
            logits = model(whole, logits_to_keep=len(ours)).logits[0]
        best, ids = logits.log_softmax(-1).max(-1)
        answers.append((ids.tolist(), best.tolist()))
    return answers


def check(results, reference):
    for i, (result, (ids, logprobs)) in enumerate(zip(results, reference, strict=True)):
        assert result["output_ids"] == ids, f"prompt {i}"
        own = [p for p, _ in result["meta_info"]["output_token_logprobs"]]
        assert own == pytest.approx(logprobs, abs=1e-4), f"prompt {i}"
        ended = result["meta_info"]["finish_reason"]["type"] == "stop"
        assert ended or len(ids) == NEW_TOKENS, f"prompt {i}"


def test_all_at_once(together, reference):
    check(together, reference)


def test_texts_decode_as_transformers_decodes_them(engine, smollm2, reference):
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(smollm2)
    results = engine.generate(TEXTS, {"temperature": 0, "max_new_tokens": NEW_TOKENS})
    for result, (ids, _) in zip(results, reference[: len(TEXTS)], strict=True):
        assert result["text"] == theirs.decode(ids, skip_special_tokens=True)


def test_one_by_one_each_on_a_cold_cache(engine, prompts, reference):
    results = []
    for prompt in prompts:
        engine.flush_cache()
        results.append(engine.generate(input_ids=prompt, sampling_params=PARAMS))
    assert all(r["meta_info"]["cached_tokens"] == 0 for r in results)
    check(results, reference)


def test_prompt_logprobs_on_a_warm_cache(engine, model, prompts):
    prompt = prompts[15]
    params = {"temperature": 0, "max_new_tokens": 1}
    engine.generate(input_ids=prompt, sampling_params=params)
    warm = engine.generate(input_ids=prompt, sampling_params=params | {"prompt_logprobs_from": 0})
    with torch.inference_mode():
        logprobs = model(torch.tensor([prompt])).logits[0].log_softmax(-1)
    expected = logprobs[torch.arange(len(prompt) - 1), torch.tensor(prompt[1:])].tolist()
    own = [p for p, _ in warm["meta_info"]["input_token_logprobs"]]
    assert own[0] is None
    assert own[1:] == pytest.approx(expected, abs=1e-4)


def test_it_says_paris(engine):
    answer = engine.chat([{"role": "user", "content": CHATS[0]}], {"temperature": 0})
    assert "Paris" in answer["text"]
    assert answer["meta_info"]["finish_reason"]["type"] == "stop"
