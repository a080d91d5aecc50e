"""4-bit checkpoints of AWQ and GPTQ: what their `quantization_config` says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from .gguf_file import ModelSourceError


@dataclass(frozen=True, slots=True)
class PackedFormat:
    """In which layout the packed weights of a checkpoint are."""

    method: Literal["awq", "gptq"]
    gptq_version: Literal["v1", "v2"] = "v1"
    """Whether stored zeros are one less than meant, as in most GPTQ checkpoints."""


def read_packed_format(config: Mapping[str, Any]) -> PackedFormat | None:
    """What the contents of a config.json say; None for a checkpoint that is not quantized.

    Raises:
        ModelSourceError: for a quantization that is not supported.
    """
    given = config.get("quantization_config")
    if not given:
        return None
    if not isinstance(given, Mapping):
        raise ModelSourceError(f"quantization_config is {given!r}: it must be an object")
    method, bits = given.get("quant_method"), given.get("bits")
    layout = given.get("version", "gemm") if method == "awq" else given.get("checkpoint_format")
    if method == "awq" and bits == 4 and str(layout).lower() == "gemm":
        return PackedFormat("awq")
    if method == "gptq" and bits == 4 and layout in (None, "", "gptq", "gptq_v2"):
        return PackedFormat("gptq", "v2" if layout == "gptq_v2" else "v1")
    raise ModelSourceError(
        f"this checkpoint is quantized by {method!r} to {bits} bits in the layout {layout!r}, "
        "which is not supported: use one in float32 or bfloat16, or 4 bits of AWQ (gemm) or GPTQ"
    )
