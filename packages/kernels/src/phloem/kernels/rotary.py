"""Rotary position embedding: its settings as model files state them, its frequencies and angles.

Owns the reading of rope settings and the arithmetic of angles, equal for all backends. Applying the
rotation is the work of a backend (`Ops.rotary_store_kv`).
"""

from __future__ import annotations

import math
import sys
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

        A setting that is null counts as left out.

        Raises:
            ValueError: for a rope type or a partial rotation that is not supported, and for a
                setting that its type lacks or that is no number above 0.
        """
        rope = {name: value for name, value in _rope_section(config).items() if value is not None}
        partial = _positive({**config, **rope}, "partial_rotary_factor", 1.0)
        if partial != 1.0:
            raise ValueError(
                f"partial_rotary_factor is {partial} in the model's config.json: only 1.0 is "
                "supported"
            )
        theta = _positive({**config, **rope}, "rope_theta", 10000.0)
        kind = rope.get("rope_type", rope.get("type", "default"))
        if kind == "linear":
            return RopeConfig(theta, kind, _positive(rope, "factor"))
        if kind != "llama3":
            return RopeConfig(theta, kind)
        original = _positive(rope, "original_max_position_embeddings")
        if not original.is_integer():
            raise ValueError(
                f"original_max_position_embeddings is {original} in the model's config.json: it "
                "must be a whole number"
            )
        return RopeConfig(
            theta=theta,
            type=kind,
            factor=_positive(rope, "factor"),
            low_freq_factor=_positive(rope, "low_freq_factor"),
            high_freq_factor=_positive(rope, "high_freq_factor"),
            original_context_length=int(original),
        )


def _rope_section(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The newer of the two sections that is there and not empty."""
    for name in ("rope_parameters", "rope_scaling"):
        section = config.get(name)
        if section is not None and not isinstance(section, Mapping):
            raise ValueError(
                f"{name} is {section!r} in the model's config.json: it must be an object with a "
                f"rope_type, one of {', '.join(SUPPORTED_TYPES)}"
            )
        if section:
            return section
    return {}


def _positive(settings: Mapping[str, Any], name: str, default: float | None = None) -> float:
    value: Any = settings.get(name)
    if value is None:
        value = default
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not 0 < value <= sys.float_info.max:
        given = "missing" if value is None else repr(value)
        raise ValueError(
            f"the rope setting {name} is {given} in the model's config.json: it must be a number "
            "above 0"
        )
    return float(value)


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
