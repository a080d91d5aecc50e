"""From a model folder to a model: its config, its weights in a form, and the kernels to run it."""

from __future__ import annotations

from pathlib import Path

import torch

from phloem.kernels import Ops, get_ops
from phloem.model_runner.checkpoint import Checkpoint
from phloem.model_runner.config import ModelConfig
from phloem.model_runner.models import LlamaModel
from phloem.model_runner.quantization import (
    Quantization,
    choose_quantization,
    float_form,
    keeps_blocks,
)

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def load_model(
    folder: str | Path,
    dtype: str = "float32",
    device: str | torch.device = "cpu",
    ops: Ops | None = None,
    quantization: str = "none",
) -> LlamaModel:
    """Load a Hugging Face model folder: config.json and safetensors, or one made of a GGUF file.

    `dtype` is "float32", "bfloat16", or "auto": bfloat16 if the checkpoint says so and its weights
    are not quantized, else float32. `ops` is the kernel backend, by default the torch reference.
    `quantization` is "none", "int8", "int4", "gguf" or "auto", see `choose_quantization`.

    Raises:
        ValueError: for a dtype, an architecture, a quantization or a setting that is not supported,
            and for weights that are missing, of another shape, or left over.
    """
    config = ModelConfig.from_folder(folder)
    ops = ops or get_ops()
    kept = choose_quantization(quantization, folder, ops.fastest_rounded)
    if dtype == "auto":
        dtype = "bfloat16" if config.dtype == "bfloat16" and kept == "none" else "float32"
    if dtype not in DTYPES:
        raise ValueError(f"dtype {dtype!r} is not supported: choose {', '.join(DTYPES)} or auto")
    device = torch.device(device)
    _check_quantized(kept, dtype, device)
    # Some checkpoints carry what the config makes superfluous: a copy of the tied head, and angles.
    ignored = ["rotary_emb.inv_freq"] + ["lm_head.weight"] * config.tie_word_embeddings
    with Checkpoint(
        Path(folder),
        DTYPES[dtype],
        device,
        keep_blocks=keeps_blocks(kept, config),
        packed=config.packed,
    ) as checkpoint:
        form = float_form(kept, config)
        model = LlamaModel(config, checkpoint, ops, DTYPES[dtype], device, form)
        checkpoint.check_all_taken(ignored)
    return model


def _check_quantized(kept: Quantization, dtype: str, device: torch.device) -> None:
    if kept != "none" and (dtype != "float32" or device.type != "cpu"):
        raise ValueError(
            f"quantization {kept!r} computes in float32 on a CPU, not in {dtype} on {device}: use "
            "quantization none, or dtype float32 and device cpu"
        )
