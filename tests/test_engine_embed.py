"""`Engine.embed` on a tiny model: as transformers pools, and whatever else is going on."""

from __future__ import annotations

import numpy as np
import pytest

from phloem.server.engine import Engine

TEXTS = ["the sap rises", "in spring", "the sap rises, and then it falls, and so on and on"]


@pytest.fixture(scope="module")
def engine(tiny_llama):
    with Engine(
        model=str(tiny_llama), dtype="float32", quantization="none", chunked_prefill_size=16
    ) as engine:
        yield engine


@pytest.fixture(scope="module")
def reference(tiny_llama):
    """Pooled states of a text by transformers, normalised."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(tiny_llama, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(tiny_llama)

    def pooled(text, pooling):
        with torch.inference_mode():
            ids = tokenizer(text, return_tensors="pt").input_ids
            states = model(ids, output_hidden_states=True).hidden_states[-1][0]
        vector = states.mean(dim=0) if pooling == "mean" else states[-1]
        return (vector / vector.norm()).numpy()

    return pooled


@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_vectors_are_those_of_transformers(engine, reference, pooling):
    found = engine.embed(TEXTS, pooling)
    assert found.shape == (3, 64)
    assert found.dtype == np.float32
    for row, text in zip(found, TEXTS):
        np.testing.assert_allclose(row, reference(text, pooling), atol=1e-5)


@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_a_vector_does_not_depend_on_others_or_on_the_cache(engine, pooling):
    engine.flush_cache()
    together = engine.embed(TEXTS * 3, pooling)
    warm = engine.embed(TEXTS[0], pooling)
    engine.flush_cache()
    cold = engine.embed(TEXTS[0], pooling)
    for found in (together[0], together[3], warm):
        np.testing.assert_allclose(found, cold, atol=1e-5)


def test_what_is_asked_for_is_what_comes(engine):
    raw = engine.embed(TEXTS[0], normalize=False)
    assert raw.shape == (64,)
    assert np.linalg.norm(raw) > 1.5
    np.testing.assert_allclose(engine.embed(TEXTS[0]), raw / np.linalg.norm(raw), atol=1e-6)
    short = engine.embed(TEXTS[0], dimensions=8)
    np.testing.assert_allclose(short, raw[:8] / np.linalg.norm(raw[:8]), atol=1e-6)
    ids = engine.tokenizer.encode(TEXTS[0])
    assert np.array_equal(engine.embed(input_ids=ids), engine.embed(TEXTS[0]))
    assert engine.embed(input_ids=[ids, ids[:3]]).shape == (2, 64)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"prompts": "a", "pooling": "max"}, "pooling is 'max'"),
        ({"prompts": "a", "dimensions": 65}, "dimensions is 65: give 1 to 64"),
        ({"prompts": "a", "dimensions": 0}, "dimensions is 0"),
        ({"prompts": []}, "there are no prompts"),
        ({"prompts": "a" * 600}, "context"),
        ({}, "give either prompts or input_ids"),
    ],
)
def test_what_cannot_be_embedded_is_refused(engine, given, why):
    with pytest.raises(ValueError, match=why):
        engine.embed(**given)
    assert engine.generate("x", {"max_new_tokens": 1})["output_ids"]
