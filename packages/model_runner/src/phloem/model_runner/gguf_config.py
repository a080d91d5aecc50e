"""GGUF metadata of the llama architecture as `config.json` and `generation_config.json`.

Owns what the keys mean and which values are refused; touches no weights, except the short
`rope_freqs.weight` table, in which llama.cpp stores the llama-3 rotary scaling.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .gguf_file import GgufError, GgufFile

ARCHITECTURES = ("llama",)

_LLAMA3_ORIGINAL_CONTEXT = 8192
_LLAMA3_LOW_FACTOR = 1.0
_LLAMA3_HIGH_FACTOR = 4.0


def model_config(source: GgufFile, *, tied: bool, vocab_size: int) -> dict[str, Any]:
    """`config.json` of a `LlamaForCausalLM`; `vocab_size` is the number of embedding rows.

    Raises `GgufError` for another architecture, experts, a partial rotary or a rotary scaling that
    cannot be expressed.
    """
    require_supported(source)
    hidden = int(source.require("llama.embedding_length"))
    heads = int(source.require("llama.attention.head_count"))
    head_dim = int(source.metadata.get("llama.attention.key_length", hidden // heads))
    _require_full_rotary(source, head_dim)
    theta = _plain(source.metadata.get("llama.rope.freq_base", 10000.0))
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "torch_dtype": "float32",
        "vocab_size": vocab_size,
        "hidden_size": hidden,
        "intermediate_size": int(source.require("llama.feed_forward_length")),
        "num_hidden_layers": int(source.require("llama.block_count")),
        "num_attention_heads": heads,
        "num_key_value_heads": int(source.metadata.get("llama.attention.head_count_kv", heads)),
        "head_dim": head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": int(source.require("llama.context_length")),
        "rms_norm_eps": _plain(source.require("llama.attention.layer_norm_rms_epsilon")),
        "rope_theta": theta,
        "rope_scaling": _rope_scaling(source, theta, head_dim),
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": tied,
    }
    return config | _special_ids(source)


def generation_config(source: GgufFile) -> dict[str, Any]:
    """`generation_config.json`: begin, end and padding ids; several ends become a list."""
    ids = _special_ids(source)
    end_of_turn = source.metadata.get("tokenizer.ggml.eot_token_id")
    eos = ids.get("eos_token_id")
    if end_of_turn is not None and eos is not None and end_of_turn != eos:
        ids["eos_token_id"] = [eos, int(end_of_turn)]
    return ids


def _special_ids(source: GgufFile) -> dict[str, Any]:
    keys = {"bos_token_id": "bos", "eos_token_id": "eos", "pad_token_id": "padding"}
    found = {
        name: source.metadata.get(f"tokenizer.ggml.{key}_token_id") for name, key in keys.items()
    }
    return {name: int(value) for name, value in found.items() if value is not None}


def require_supported(source: GgufFile) -> None:
    """Raises `GgufError` unless `source` is a dense llama model with equal layers."""
    architecture = source.require("general.architecture")
    if architecture not in ARCHITECTURES:
        raise GgufError(
            f"{source.path.name} holds the architecture {architecture!r}, but only "
            f"{', '.join(ARCHITECTURES)} can be converted: use the model's safetensors folder"
        )
    experts = int(source.metadata.get("llama.expert_count", 0))
    if experts:
        raise GgufError(
            f"{source.path.name} has {experts} experts per layer, but only dense llama models can "
            "be converted: use a dense model"
        )
    for name in ("head_count", "head_count_kv", "feed_forward_length"):
        key = f"llama.{name}" if name == "feed_forward_length" else f"llama.attention.{name}"
        if isinstance(source.metadata.get(key), Sequence):
            raise GgufError(
                f"{source.path.name} gives {key} per layer, but one value for all layers is "
                "supported: use a model with equal layers"
            )


def _require_full_rotary(source: GgufFile, head_dim: int) -> None:
    rotated = int(source.metadata.get("llama.rope.dimension_count", head_dim))
    value_dim = int(source.metadata.get("llama.attention.value_length", head_dim))
    if rotated != head_dim or value_dim != head_dim:
        raise GgufError(
            f"{source.path.name} rotates {rotated} of {head_dim} head dimensions with values of "
            f"{value_dim}, but llama models need all three equal: "
            "use the model's safetensors folder"
        )


def _rope_scaling(source: GgufFile, theta: float, head_dim: int) -> dict[str, Any] | None:
    table = next((t.data for t in source.tensors if t.name == "rope_freqs.weight"), None)
    kind = source.metadata.get("llama.rope.scaling.type", "none")
    if table is not None and kind == "none":
        return _llama3_scaling(source, np.asarray(table, np.float32), theta, head_dim)
    if table is None and kind == "none":
        return None
    if table is None and kind == "linear":
        return {"rope_type": "linear", "factor": float(source.require("llama.rope.scaling.factor"))}
    raise GgufError(
        f"{source.path.name} scales its rotary positions by {kind!r}"
        f"{'' if table is None else ' and a table'}, but only none, linear or the llama-3 table "
        "can be converted: use the model's safetensors folder"
    )


def _llama3_scaling(
    source: GgufFile, table: np.ndarray, theta: float, head_dim: int
) -> dict[str, Any]:
    """The parameters behind a table of frequency divisors `[head_dim / 2]`, proven by computing it.

    The largest divisor is the scaling factor; the other parameters are the same in every published
    llama-3 model.
    """
    factor = float(table.max())
    if not np.allclose(llama3_divisors(theta, head_dim, factor), table, rtol=1e-4):
        raise GgufError(
            f"{source.path.name} has a rope_freqs table that is not llama-3's for a factor of "
            f"{factor}: use the model's safetensors folder"
        )
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": _LLAMA3_LOW_FACTOR,
        "high_freq_factor": _LLAMA3_HIGH_FACTOR,
        "original_max_position_embeddings": _LLAMA3_ORIGINAL_CONTEXT,
    }


def llama3_divisors(theta: float, head_dim: int, factor: float) -> np.ndarray:
    """What llama-3 scaling divides each rotary frequency by, float64 `[head_dim / 2]`.

    1 for wavelengths under context / high factor, `factor` for those over context / low factor, and
    in between the harmonic interpolation of the two (Llama 3.1 model card and reference code).
    """
    frequencies = theta ** (-np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    turns = _LLAMA3_ORIGINAL_CONTEXT * frequencies / (2 * math.pi)
    span = _LLAMA3_HIGH_FACTOR - _LLAMA3_LOW_FACTOR
    smooth = np.clip((turns - _LLAMA3_LOW_FACTOR) / span, 0.0, 1.0)
    return 1.0 / ((1.0 - smooth) / factor + smooth)


def _plain(value: float) -> float:
    """The shortest decimal that is the same float32: 1e-05, not 9.999999747378752e-06."""
    return float(str(np.float32(value)))
