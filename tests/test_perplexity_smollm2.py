"""What rounding costs the default model, on the text of `benchmarks.perplexity`.

Rounded activations are noise, which the layers amplify: from one backend or instruction set to
another, where other ties are rounded, the perplexity of this text moves by up to 0.1 %.
"""

from pathlib import Path

import pytest

from phloem.kernels import get_ops
from phloem.kernels.registry import automatic_backend
from phloem.mem_pool.kv import KVPool, KVShape
from phloem.model_runner import load_model
from phloem.model_runner.perplexity import likelihood
from phloem.server.tokenizer import Tokenizer

TEXT = Path(__file__).parents[1] / "benchmarks" / "data" / "perplexity.txt"
WINDOW = 512
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def perplexity(smollm2):
    ids = Tokenizer.from_folder(smollm2).encode(TEXT.read_text(encoding="utf-8"))
    ops = get_ops(automatic_backend())
    known = {}

    def of(quantization):
        if quantization not in known:
            model = load_model(smollm2, ops=ops, quantization=quantization)
            c = model.config
            pool = KVPool(WINDOW + 1, KVShape(c.num_layers, c.num_kv_heads, c.head_dim))
            known[quantization] = likelihood(model, pool, ids, WINDOW).perplexity
        return known[quantization]

    return of


@pytest.mark.parametrize(("quantization", "percent"), [("int8", 1.0), ("gguf", 0.2)])
def test_perplexity_stays_near_that_of_the_same_weights_in_floats(
    perplexity, quantization, percent
):
    exact = perplexity("none")
    assert abs(perplexity(quantization) / exact - 1) < percent / 100


def test_four_bits_of_weights_that_have_four_already_cost_more(perplexity):
    assert 1.01 < perplexity("int4") / perplexity("none") < 1.12
