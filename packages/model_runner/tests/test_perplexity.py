import math

import numpy as np
import pytest
import torch

from phloem.mem_pool.kv import KVPool, KVShape
from phloem.model_runner.perplexity import Likelihood, likelihood

IDS = [(i * i * 7 + 3 * i) % 250 for i in range(53)]


def pool_of(model, window, dtype=torch.float32):
    c = model.config
    return KVPool(window + 1, KVShape(c.num_layers, c.num_kv_heads, c.head_dim, dtype))


def nll_of(reference, ids):
    with torch.inference_mode():
        logprobs = reference(torch.tensor([ids])).logits[0].double().log_softmax(-1)
    return -logprobs[:-1].gather(1, torch.tensor(ids[1:])[:, None]).sum().item()


@pytest.mark.parametrize("window", [2, 20, 53, 100])
def test_it_is_the_mean_over_the_windows_as_transformers_computes_it(tiny, tiny_model, window):
    windows = [IDS[i : i + window] for i in range(0, len(IDS), window)]
    total = sum(nll_of(tiny.reference, w) for w in windows if len(w) > 1)
    count = sum(len(w) - 1 for w in windows)
    found = likelihood(tiny_model, pool_of(tiny_model, window), IDS, window)
    assert found.num_tokens == count
    assert found.nll == pytest.approx(total / count, rel=1e-5)


def test_it_does_not_depend_on_what_is_in_the_cache(tiny_model):
    pool = pool_of(tiny_model, 30)
    first = likelihood(tiny_model, pool, IDS, 30)
    assert likelihood(tiny_model, pool, IDS, 30) == first


def test_a_rounded_cache_shows(tiny_model):
    exact = likelihood(tiny_model, pool_of(tiny_model, 53), IDS, 53).nll
    rounded = likelihood(tiny_model, pool_of(tiny_model, 53, torch.int8), IDS, 53).nll
    assert rounded != exact
    assert rounded == pytest.approx(exact, rel=0.02)


def test_perplexity_is_the_number_of_equally_likely_tokens():
    assert Likelihood(math.log(12.5), 7).perplexity == pytest.approx(12.5)


@pytest.mark.parametrize(("num_ids", "window"), [(1, 10), (20, 1), (20, 513)])
def test_what_foretells_nothing_is_refused(tiny_model, num_ids, window):
    with pytest.raises(ValueError, match=f"{num_ids} tokens in windows of {window} foretell"):
        likelihood(tiny_model, pool_of(tiny_model, 8), np.arange(num_ids), window)
