"""The linear op: plain torch, or oneDNN's packed form of the weight on a CPU.

The packed form exists because `F.linear` in float32 goes to the BLAS that torch was built with,
which on some CPUs takes twice to five times as long as oneDNN at the few rows of a decode step.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

_PACKED_FOR_ROWS = 16
"""The number of rows that the packed layout is chosen for; any number works."""


@dataclass(frozen=True, slots=True, eq=False)
class TorchLinear:
    """A weight `[out, in]`, packed or not, and its bias."""

    weight: Tensor
    bias: Tensor | None
    packed: bool

    @staticmethod
    def prepare(weight: Tensor, bias: Tensor | None) -> TorchLinear:
        """Pack where that pays: float32 on a CPU with oneDNN."""
        if weight.device.type == "cpu" and weight.dtype == torch.float32 and has_packed_linear():
            packed = torch.ops.mkldnn._reorder_linear_weight(weight, _PACKED_FOR_ROWS)
            return TorchLinear(packed, bias, packed=True)
        return TorchLinear(weight, bias, packed=False)

    def __call__(self, x: Tensor) -> Tensor:
        """`x @ weight.T + bias`."""
        if self.packed:
            return torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")
        return F.linear(x, self.weight, self.bias)


def has_packed_linear() -> bool:
    """Whether this torch can pack linear weights (the ops that its compiler emits for CPUs)."""
    ops = torch.ops.mkldnn
    return (
        torch.backends.mkldnn.is_available()
        and hasattr(ops, "_reorder_linear_weight")
        and hasattr(ops, "_linear_pointwise")
    )
