"""Rotary position embedding: its settings as model files state them, its frequencies and angles.

Owns the reading of rope settings and the arithmetic of angles, equal for all backends. Applying the
rotation is the work of a backend (`Ops.rotary_store_kv`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

SUPPORTED_TYPES = ("default", "linear", "llama3")


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary settings. The fields after `factor` are for the type "llama3" only."""

    theta: float = 10000.0
    type: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context_length: int = 8192

    def __post_init__(self) -> None:
        if self.type not in SUPPORTED_TYPES:
            raise ValueError(
                f"rope type {self.type!r} is not supported: known are {', '.join(SUPPORTED_TYPES)}"
            )
        for name in ("theta", "factor", "low_freq_factor", "original_context_length"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"rope {name} is {getattr(self, name)}: give a number above 0")
        if self.high_freq_factor <= self.low_freq_factor:
            raise ValueError(
                f"rope high_freq_factor {self.high_freq_factor} must be above "
                f"low_freq_factor {self.low_freq_factor}"
            )

    @staticmethod
    def from_hf(config: Mapping[str, Any]) -> RopeConfig:
        """Read the rope settings of an HF `config.json`.

        Takes both forms: `rope_parameters` (transformers 5), or `rope_theta` beside `rope_scaling`.

        Raises:
            ValueError: for a rope type, or a partial rotation, that is not supported.
        """
        rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
        partial = rope.get("partial_rotary_factor", config.get("partial_rotary_factor")) or 1.0
        if partial != 1.0:
            raise ValueError(f"partial_rotary_factor {partial} is not supported: only 1.0 is")
        kind = rope.get("rope_type") or rope.get("type") or "default"
        theta = float(rope.get("rope_theta") or config.get("rope_theta") or 10000.0)
        if kind != "llama3":
            return RopeConfig(theta, kind, float(rope.get("factor") or 1.0))
        try:
            return RopeConfig(
                theta=theta,
                type=kind,
                factor=float(rope["factor"]),
                low_freq_factor=float(rope["low_freq_factor"]),
                high_freq_factor=float(rope["high_freq_factor"]),
                original_context_length=int(rope["original_max_position_embeddings"]),
            )
        except KeyError as missing:
            raise ValueError(f"rope type 'llama3' needs {missing} in the model's config") from None


def inverse_frequencies(rope: RopeConfig, head_dim: int) -> Tensor:
    """The angle per position of each pair of elements, `[head_dim / 2]` float32 on the CPU.

    `theta^(-2i / head_dim)`; "linear" divides all by `factor`; "llama3" divides wavelengths above
    `original_context_length / low_freq_factor`, keeps those below
    `original_context_length / high_freq_factor`, and blends between.
    """
    if head_dim < 2 or head_dim % 2:
        raise ValueError(f"head_dim {head_dim} cannot be rotated in pairs: it must be even")
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    base = 1.0 / (rope.theta**exponents)
    if rope.type == "default":
        return base
    if rope.type == "linear":
        return base / rope.factor
    wavelengths_in_context = rope.original_context_length * base / (2.0 * math.pi)
    blend = (wavelengths_in_context - rope.low_freq_factor) / (
        rope.high_freq_factor - rope.low_freq_factor
    )
    blend = blend.clamp(0.0, 1.0)
    return base / rope.factor * (1.0 - blend) + base * blend


def cos_sin(positions: Tensor, frequencies: Tensor) -> Tensor:
    """Cosines, then sines, of every position's angles: `[T, head_dim]` float32.

    `positions` is `[T]` of integers, `frequencies` `[head_dim / 2]` on the same device. Computed
    for the tokens of a step, so no table of the whole context length stays in memory.
    """
    angles = positions.float().unsqueeze(-1) * frequencies
    return torch.cat((angles.cos(), angles.sin()), dim=-1)
