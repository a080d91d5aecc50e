"""`--kv-cache-dtype`: memory that holds more, answers that stay near, and invariance as ever."""

import numpy as np
import pytest
import torch

from phloem.kernels import get_ops
from phloem.mem_pool.kv import DTYPES, KVPool, KVShape
from phloem.model_runner import load_model
from phloem.model_runner.models import ForwardBatch
from phloem.server import Engine
from phloem.server.config import ServerArgs
from phloem.server.tokenizer import Tokenizer

PROMPTS = [[(i * i * (s + 1) + s) % 250 + 1 for i in range(20 + 13 * s)] for s in range(6)]
PARAMS = {"temperature": 0, "max_new_tokens": 24, "top_logprobs": 0}


def answers(results):
    ids = [r["output_ids"] for r in results]
    return ids, [p for r in results for p, _ in r["meta_info"]["output_token_logprobs"]]


@pytest.fixture(scope="module", params=["bfloat16", "int8", "fp8_e4m3"])
def cold(request, tiny_llama):
    with Engine(model=str(tiny_llama), kv_cache_dtype=request.param) as engine:
        return request.param, answers(engine.generate(input_ids=PROMPTS, sampling_params=PARAMS))


@pytest.mark.parametrize("page_size", [1, 16])
def test_a_warm_cache_gives_what_a_cold_one_gave(tiny_llama, cold, page_size):
    name, (ids, logprobs) = cold
    with Engine(model=str(tiny_llama), kv_cache_dtype=name, page_size=page_size) as engine:
        engine.generate(input_ids=PROMPTS, sampling_params=PARAMS)
        warm = engine.generate(input_ids=PROMPTS, sampling_params=PARAMS)
    for prompt, result in zip(PROMPTS, warm, strict=True):
        cached = (len(prompt) - 1) // page_size * page_size
        assert result["meta_info"]["cached_tokens"] == cached
    assert answers(warm)[0] == ids
    assert answers(warm)[1] == pytest.approx(logprobs, abs=1e-4)


@pytest.mark.parametrize("chunk", [1, 16])
def test_chunks_give_what_whole_prompts_gave(tiny_llama, cold, chunk):
    """Within one rounding of a K or V, as float sums differ; exactly: see `test_kv_forms`."""
    name, (ids, logprobs) = cold
    options = {"kv_cache_dtype": name, "chunked_prefill_size": chunk, "enable_mixed_chunk": True}
    with Engine(model=str(tiny_llama), **options) as engine:
        found = answers(engine.generate(input_ids=PROMPTS, sampling_params=PARAMS))
    assert found[0] == ids
    assert found[1] == pytest.approx(logprobs, abs=0.02)


def test_auto_is_the_dtype_of_the_weights(tiny_llama):
    for dtype in ("float32", "bfloat16"):
        capacities = []
        for name in ("auto", dtype):
            with Engine(model=str(tiny_llama), dtype=dtype, kv_cache_dtype=name) as engine:
                capacities.append(engine._driver.call(lambda s: s.manager.capacity))
        assert capacities[0] == capacities[1]


def test_the_same_memory_holds_as_many_tokens_as_their_bytes_allow(tiny_llama):
    gib = 1 << 30
    for name, dtype in DTYPES.items():
        with Engine(model=str(tiny_llama), kv_cache_dtype=name) as engine:
            capacity = engine._driver.call(lambda s: s.manager.capacity)
        assert capacity == gib // KVShape(2, 2, 16, dtype).bytes_per_token - 1


def test_an_unknown_dtype_is_refused_with_those_there_are():
    with pytest.raises(ValueError, match=r"kv_cache_dtype 'int4' is unknown: use one of auto, fl"):
        ServerArgs(kv_cache_dtype="int4")


def test_every_dtype_of_a_pool_can_be_asked_for():
    choices = ServerArgs.__dataclass_fields__["kv_cache_dtype"].metadata["choices"]
    assert choices == ("auto", *DTYPES)


def test_a_pool_that_does_not_fit_is_refused_with_its_bytes_a_token_and_the_cure(tiny_llama):
    with pytest.raises(ValueError, match=r"at 160 bytes a token.* fewer bytes a token"):
        Engine(model=str(tiny_llama), kv_cache_dtype="int8", max_total_tokens=1 << 30)


BOUNDS = {"bfloat16": 0.1, "float16": 0.02, "int8": 0.4, "fp8_e4m3": 1.5}


@pytest.mark.slow
def test_smollm2_stays_near_its_answers_in_float32(smollm2):
    """In the log-probabilities of all tokens that float32 finds likely, over a short prompt."""
    model = load_model(smollm2, "float32", "cpu", get_ops())
    c = model.config
    tokenizer = Tokenizer.from_folder(smollm2)
    ids = tokenizer.encode("The capital of France is Paris. Water boils at 100 degrees")
    logprobs = {}
    for name, dtype in DTYPES.items():
        pool = KVPool(33, KVShape(c.num_layers, c.num_kv_heads, c.head_dim, dtype))
        logprobs[name] = forward(model, pool, ids)
    likely = logprobs["float32"] > -5
    for name, bound in BOUNDS.items():
        assert (logprobs[name] - logprobs["float32"])[likely].abs().max() < bound, name


def forward(model, pool, ids):
    n, table = len(ids), np.arange(1, 33, dtype=np.int32)[None]
    one = np.array([n], np.int32)
    plan = model.ops.plan_attention(table, np.zeros(1, np.int32), one, one, model.attention_spec)
    batch = ForwardBatch(torch.tensor(ids), torch.arange(n), torch.arange(1, n + 1), plan)
    with torch.inference_mode():
        return model.logits(model.forward(batch, pool)).log_softmax(-1)
