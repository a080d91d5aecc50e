"""K and V of one layer as two plain tensors: the simplest form that attention reads."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True, slots=True)
class KVTensors:
    """Implements `KVLayer` on `k` `[S, G, D]` and `v` `[S, G, D_v]`, contiguous, of one dtype."""

    k: Tensor
    v: Tensor

    def store(self, slots: Tensor, k: Tensor, v: Tensor) -> None:
        """See `KVLayer.store`."""
        self.k.index_copy_(0, slots, k.to(self.k.dtype))
        self.v.index_copy_(0, slots, v.to(self.v.dtype))

    def gather(self, slots: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """See `KVLayer.gather`."""
        return _rows(self.k, slots).to(dtype), _rows(self.v, slots).to(dtype)


def _rows(cache: Tensor, slots: Tensor) -> Tensor:
    """`embedding` copies rows in parallel."""
    return F.embedding(slots, cache.flatten(1)).view(-1, *cache.shape[1:])
