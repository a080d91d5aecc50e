"""What a model is, read from `config.json` and `generation_config.json` of a model folder.

Owns the reading and the refusal of what is not supported. It needs neither transformers nor torch
models, and knows no weights.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phloem.kernels.rotary import RopeConfig


@dataclass(frozen=True, slots=True)
class Architecture:
    """How the config of one architecture is read."""

    model_type: str
    qkv_bias: bool | None = None
    """Whether query, key and value have a bias; None: `attention_bias` says, for the output too."""


ARCHITECTURES: Mapping[str, Architecture] = {
    "LlamaForCausalLM": Architecture("llama"),
    "MistralForCausalLM": Architecture("mistral"),
    "Qwen2ForCausalLM": Architecture("qwen2", qkv_bias=True),
}


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The shape and constants of a decoder-only transformer of the Llama family."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope: RopeConfig
    context_length: int
    tie_word_embeddings: bool
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    """Ends of a text: those of generation_config.json if it has any, else those of config.json."""
    dtype: str | None
    """The dtype the checkpoint says it has, such as "bfloat16"."""

    @staticmethod
    def from_folder(folder: str | Path) -> ModelConfig:
        """Read a model folder.

        Raises:
            ValueError: naming the file, or the setting that is missing or not supported.
        """
        config = _read_json(Path(folder) / "config.json")
        generation_file = Path(folder) / "generation_config.json"
        generation = _read_json(generation_file) if generation_file.is_file() else {}
        return ModelConfig.from_dicts(config, generation)

    @staticmethod
    def from_dicts(config: Mapping[str, Any], generation: Mapping[str, Any]) -> ModelConfig:
        """Read the two files' contents.

        Raises:
            ValueError: naming the setting that is missing or not supported.
        """
        name = _architecture_name(config)
        _refuse_unsupported(config)
        bias = ARCHITECTURES[name].qkv_bias
        num_heads = _required(config, "num_attention_heads")
        hidden_size = _required(config, "hidden_size")
        eos = generation.get("eos_token_id")
        return ModelConfig(
            architecture=name,
            vocab_size=_required(config, "vocab_size"),
            hidden_size=hidden_size,
            intermediate_size=_required(config, "intermediate_size"),
            num_layers=_required(config, "num_hidden_layers"),
            num_heads=num_heads,
            num_kv_heads=config.get("num_key_value_heads") or num_heads,
            head_dim=config.get("head_dim") or hidden_size // num_heads,
            rms_norm_eps=float(config.get("rms_norm_eps", 1e-6)),
            rope=RopeConfig.from_hf(config),
            context_length=_required(config, "max_position_embeddings"),
            tie_word_embeddings=bool(config.get("tie_word_embeddings", False)),
            qkv_bias=bool(config.get("attention_bias", False)) if bias is None else bias,
            output_bias=bool(config.get("attention_bias", False)) if bias is None else False,
            mlp_bias=bool(config.get("mlp_bias", False)),
            bos_token_id=config.get("bos_token_id"),
            eos_token_ids=_ids(config.get("eos_token_id") if eos is None else eos),
            dtype=config.get("dtype") or config.get("torch_dtype"),
        )


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"{path} does not exist: a model folder needs this file") from None
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds no JSON object")
    return content


def _architecture_name(config: Mapping[str, Any]) -> str:
    """The first supported one; a config without `architectures` is known by its `model_type`."""
    names = list(config.get("architectures") or ())
    if not names:
        names = [n for n, a in ARCHITECTURES.items() if a.model_type == config.get("model_type")]
    for name in names:
        if name in ARCHITECTURES:
            return str(name)
    given = ", ".join(map(str, names)) or config.get("model_type")
    raise ValueError(
        f"model architecture {given} is not supported: supported are {', '.join(ARCHITECTURES)}"
    )


def _refuse_unsupported(config: Mapping[str, Any]) -> None:
    activation = config.get("hidden_act", "silu")
    if activation != "silu":
        raise ValueError(f"hidden_act {activation!r} is not supported: only 'silu' is")
    # Qwen2 has a window that `use_sliding_window` switches on; Mistral's is on where it is set.
    window = config.get("sliding_window") if config.get("use_sliding_window", True) else None
    if window is not None:
        raise ValueError(
            f"sliding_window {window} is not supported: only models that attend to their whole "
            "context are"
        )
    if config.get("quantization_config"):
        raise ValueError(
            "this checkpoint is quantized (quantization_config), which is not supported: "
            "use one in float32 or bfloat16"
        )


def _required(config: Mapping[str, Any], key: str) -> int:
    value = config.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{key} is {value!r} in the model's config.json: it must be 1 or more")
    return value


def _ids(value: int | list[int] | None) -> tuple[int, ...]:
    if value is None:
        return ()
    return tuple(value) if isinstance(value, list) else (value,)
