"""The rotated model: what it computes without rounding, and what rounding then costs it."""

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from phloem.kernels.torch_backend import TorchOps
from phloem.model_runner import load_model
from phloem.model_runner.batch import prepare

IDS = [5, 1, 200, 7, 7, 99, 13, 250]


class UnroundedOps(TorchOps):
    """Keeps every weight in floats, whatever form is asked for."""

    def prepare_linear(self, weight, bias=None, form="float", input_bits=8):
        return super().prepare_linear(weight, bias)

    def prepare_embedding(self, weight, form="float"):
        return super().prepare_embedding(weight)


class RoundingOps(TorchOps):
    """Rounds every weight to int8, of a model that nobody rotated."""

    def prepare_linear(self, weight, bias=None, form="float", input_bits=8):
        return super().prepare_linear(weight, bias, "int8")

    def prepare_embedding(self, weight, form="float"):
        return super().prepare_embedding(weight, "int8")

    def tied_head(self, embedding, input_bits=8):
        return super().prepare_linear(embedding.values, None, "int8")


def with_norms(saved):
    """Norms that are not all ones, as trained ones are."""
    for name, weight in saved.reference.named_parameters():
        if "norm" in name:
            weight.data.uniform_(0.2, 3.0)
    saved.reference.save_pretrained(saved.folder)
    return saved


MODELS = {
    "tied": {"tie_word_embeddings": True},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "odd widths": {"hidden_size": 72, "intermediate_size": 136, "head_dim": 20},
    "qwen2": {"model_class": Qwen2ForCausalLM, "config_class": Qwen2Config},
}


@pytest.fixture
def logits_of(drive):
    """Logits at every token of a prompt."""

    def run(model):
        driver = drive(model)
        part = driver.batch((0, IDS, len(IDS)))
        with torch.inference_mode():
            prepared = prepare(part, driver.table, model.ops, model.attention_spec)
            return model.logits(model.forward(prepared.forward, driver.pool)).clone()

    return run


@pytest.mark.parametrize("name", MODELS)
def test_a_rotated_model_computes_what_the_model_does(save_tiny, logits_of, name):
    saved = with_norms(save_tiny(**MODELS[name]))
    with torch.inference_mode():
        expected = saved.reference(torch.tensor([IDS])).logits[0]
    found = logits_of(load_model(saved.folder, ops=UnroundedOps(), quantization="int8"))
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


def test_a_channel_that_stands_out_costs_a_rotated_model_little(save_tiny, logits_of):
    saved = save_tiny(hidden_size=128, num_attention_heads=4)
    weights = saved.reference.state_dict()
    weights["model.embed_tokens.weight"][:, 3] *= 60.0
    for layer in range(2):
        prefix = f"model.layers.{layer}."
        for reader in ("self_attn.q_proj", "self_attn.k_proj", "mlp.gate_proj"):
            weights[f"{prefix}{reader}.weight"][:, 3] /= 60.0
    saved.reference.save_pretrained(saved.folder)
    exact = logits_of(load_model(saved.folder))
    rounded = logits_of(load_model(saved.folder, quantization="int8"))
    unrotated = logits_of(load_model(saved.folder, ops=RoundingOps()))
    assert 0 < (rounded - exact).norm() < 0.5 * (unrotated - exact).norm()
