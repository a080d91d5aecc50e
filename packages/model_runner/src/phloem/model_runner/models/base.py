"""What a model is given: the tensors of a step, and weights by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from phloem.kernels import AttentionPlan, BlockWeight


@dataclass(frozen=True, slots=True)
class ForwardBatch:
    """One step's T tokens on the device."""

    input_ids: Tensor
    """[T] int64"""
    positions: Tensor
    """[T] int64"""
    out_slots: Tensor
    """[T] int64, where each token's K and V go."""
    attention: AttentionPlan


class WeightSource(Protocol):
    """Where a model takes its weights from while it is built."""

    def take(self, names: Sequence[str], shapes: Sequence[tuple[int, ...]]) -> Tensor:
        """The named tensors, of these shapes, concatenated along their first axis."""
        ...

    def take_linear(
        self, names: Sequence[str], shapes: Sequence[tuple[int, int]]
    ) -> Tensor | BlockWeight:
        """Matrices `[out, in]` likewise, for a linear or an embedding: they may be in blocks."""
        ...
