from types import SimpleNamespace

import numpy as np
import pytest
import torch

from phloem.mem_pool.kv import KVPool, KVShape
from phloem.model_runner import ModelRunner, load_model
from phloem.scheduler import ModelWorkerBatch, SamplingBatch, SamplingParams

MAX_ROWS, MAX_LEN = 6, 256
GREEDY = SamplingParams(temperature=0.0)


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    """Tiny tensors gain nothing from threads, and lose much where cores are shared."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def save_tiny(tmp_path_factory):
    """Makes a folder with a tiny random model of transformers, and returns both."""
    from transformers import LlamaConfig, LlamaForCausalLM

    def save(model_class=LlamaForCausalLM, config_class=LlamaConfig, shards=None, **settings):
        config = config_class(
            **{
                "vocab_size": 256,
                "hidden_size": 64,
                "intermediate_size": 128,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "num_key_value_heads": 2,
                "max_position_embeddings": 512,
                # Wide enough that the likeliest token is no tie that rounding could turn.
                "initializer_range": 0.3,
                **settings,
            }
        )
        torch.manual_seed(0)
        model = model_class(config).eval()
        for name, weight in model.named_parameters():
            if name.endswith("bias"):
                weight.data.normal_(0, 0.3)
        folder = tmp_path_factory.mktemp("tiny")
        sharding = {"max_shard_size": shards} if shards else {}
        model.save_pretrained(folder, **sharding)
        return SimpleNamespace(folder=folder, reference=model)

    return save


@pytest.fixture(scope="session")
def tiny(save_tiny):
    return save_tiny()


@pytest.fixture(scope="session")
def tiny_model(tiny):
    return load_model(tiny.folder)


class Driver:
    """A hand-driven scheduler: rows with scattered slots, batches from `(row, ids, end)` parts."""

    def __init__(self, model, overlap=False, seed=0, kv_dtype=None):
        c = model.config
        self.table = np.zeros((MAX_ROWS, MAX_LEN), np.int32)
        self.pool = KVPool(
            MAX_ROWS * MAX_LEN + 1,
            KVShape(c.num_layers, c.num_kv_heads, c.head_dim, kv_dtype or model.dtype),
        )
        # What was never written may hold anything: nothing of it may be seen.
        self.spoil(torch.arange(1, self.pool.num_slots))
        slots = np.random.default_rng(seed).permutation(np.arange(1, MAX_ROWS * MAX_LEN + 1))
        self.table[:] = slots.reshape(MAX_ROWS, MAX_LEN)
        self.runner = ModelRunner(model, self.pool, self.table, overlap=overlap)

    def spoil(self, slots):
        nan = torch.full((len(slots), *self.pool.shape.parts[0]), float("nan"))
        for layer in range(self.pool.num_layers):
            self.pool.store(layer, slots, nan, nan)

    def batch(self, *parts, params=GREEDY, samples=None, histories=(), suppressed=(), asked=()):
        """Each part is (row, ids, end): these ids are computed, and end at position `end`."""
        if not isinstance(params, list):
            params = [params] * len(parts)
        rows = np.array([row for row, _, _ in parts], np.int32)
        ends = np.array([end for _, _, end in parts], np.int32)
        return ModelWorkerBatch(
            rows=rows,
            query_lens=np.array([len(ids) for _, ids, _ in parts], np.int32),
            seq_lens=ends,
            input_ids=np.concatenate([np.array(ids, np.int32) for _, ids, _ in parts]),
            out_slots=np.concatenate([self.table[r, e - len(i) : e] for r, i, e in parts]),
            samples=np.array([True] * len(parts) if samples is None else samples),
            sampling=SamplingBatch.from_params(
                params, [p.seed or 0 for p in params], ends.tolist(), suppressed, histories
            ),
            prompt_logprobs=asked,
        )

    def enqueue(self, *parts, masks=None, **settings):
        step = self.runner.forward(self.batch(*parts, **settings))
        self.runner.sample(step, masks)
        return step

    def run(self, *parts, **settings):
        return self.runner.result(self.enqueue(*parts, **settings))


@pytest.fixture
def drive():
    """Makes drivers, and closes their runners in the end."""
    made = []

    def make(model, **settings):
        made.append(Driver(model, **settings))
        return made[-1]

    yield make
    for driver in made:
        driver.runner.close()
