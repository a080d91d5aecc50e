"""What a model is, read from `config.json` and `generation_config.json` of a model folder.

Owns which settings there are and the refusal of what is not supported. It needs neither
transformers nor torch models, and knows no weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phloem.kernels.rotary import RopeConfig
from phloem.model_runner.gguf_file import ModelSourceError
from phloem.model_runner.packed_format import PackedFormat, read_packed_format
from phloem.model_runner.settings import Settings, read_json_object


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
    packed: PackedFormat | None = None
    """How the weights of a quantized checkpoint are stored; None: in floats."""

    @staticmethod
    def from_folder(folder: str | Path) -> ModelConfig:
        """Read a model folder.

        Raises:
            ValueError: naming the file, or the setting that is missing, of a wrong type or range,
                or not supported.
        """
        config = read_json_object(Path(folder) / "config.json")
        generation_file = Path(folder) / "generation_config.json"
        generation = read_json_object(generation_file) if generation_file.is_file() else {}
        return ModelConfig.from_dicts(config, generation)

    @staticmethod
    def from_dicts(config: Mapping[str, Any], generation: Mapping[str, Any]) -> ModelConfig:
        """Read the two files' contents.

        Raises:
            ValueError: naming the setting that is missing, of a wrong type or range, or not
                supported.
        """
        settings = Settings("the model's config.json", config)
        ends = Settings("the model's generation_config.json", generation)
        name = _architecture_name(settings)
        _refuse_unsupported(settings)
        bias = ARCHITECTURES[name].qkv_bias
        attention_bias = settings.flag("attention_bias")
        vocab_size = settings.size("vocab_size")
        hidden_size = settings.size("hidden_size")
        num_heads = settings.size("num_attention_heads")
        eos = ends.token_ids("eos_token_id", vocab_size)
        if eos is None:
            eos = settings.token_ids("eos_token_id", vocab_size) or ()
        return ModelConfig(
            architecture=name,
            vocab_size=vocab_size,
            hidden_size=hidden_size,
            intermediate_size=settings.size("intermediate_size"),
            num_layers=settings.size("num_hidden_layers"),
            num_heads=num_heads,
            num_kv_heads=_num_kv_heads(settings, num_heads),
            head_dim=_head_dim(settings, hidden_size, num_heads),
            rms_norm_eps=settings.positive_number("rms_norm_eps", 1e-6),
            rope=RopeConfig.from_hf(config),
            context_length=settings.size("max_position_embeddings"),
            tie_word_embeddings=settings.flag("tie_word_embeddings"),
            qkv_bias=attention_bias if bias is None else bias,
            output_bias=attention_bias if bias is None else False,
            mlp_bias=settings.flag("mlp_bias"),
            bos_token_id=settings.token_id("bos_token_id", vocab_size),
            eos_token_ids=eos,
            dtype=settings.text("dtype") or settings.text("torch_dtype"),
            packed=read_packed_format(config),
        )


def _architecture_name(settings: Settings) -> str:
    """The first supported one; a config without `architectures` is known by its `model_type`."""
    names = settings.texts("architectures")
    model_type = settings.text("model_type")
    if not names:
        names = tuple(n for n, a in ARCHITECTURES.items() if a.model_type == model_type)
    for name in names:
        if name in ARCHITECTURES:
            return name
    given = ", ".join(names) or model_type
    raise ModelSourceError(
        f"model architecture {given} is not supported: supported are {', '.join(ARCHITECTURES)}"
    )


def _refuse_unsupported(settings: Settings) -> None:
    if settings.values.get("hidden_act", "silu") != "silu":
        raise settings.refusal("hidden_act", "only 'silu' is supported")
    # Qwen2 has a window that `use_sliding_window` switches on; Mistral's is on where it is set.
    windowed = settings.flag("use_sliding_window", default=True)
    if windowed and settings.values.get("sliding_window") is not None:
        raise settings.refusal(
            "sliding_window", "only models that attend to their whole context are supported"
        )


def _num_kv_heads(settings: Settings, num_heads: int) -> int:
    num_kv_heads = settings.size("num_key_value_heads", num_heads)
    if num_heads % num_kv_heads:
        raise settings.refusal(
            "num_key_value_heads", f"it must divide num_attention_heads, which is {num_heads}"
        )
    return num_kv_heads


def _head_dim(settings: Settings, hidden_size: int, num_heads: int) -> int:
    """Even, because rotary embedding turns pairs of elements."""
    if settings.values.get("head_dim") is None:
        if hidden_size % (2 * num_heads):
            raise settings.refusal(
                "hidden_size",
                "without a head_dim it must be an even multiple of num_attention_heads, which is "
                f"{num_heads}",
            )
        return hidden_size // num_heads
    head_dim = settings.size("head_dim")
    if head_dim % 2:
        raise settings.refusal("head_dim", "it must be even, because it is rotated in pairs")
    return head_dim
