"""The linear op: plain torch, or oneDNN's packed form of the weight on a CPU.

The packed form exists because `F.linear` in float32 goes to the BLAS that torch was built with,
which on some CPUs takes twice to five times as long as oneDNN at the few rows of a decode step.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

_PACKED_FOR_ROWS = 16
"""The number of rows that the packed layout is chosen for; any number works."""
_PACKABLE = (torch.float32, torch.bfloat16)


@dataclass(frozen=True, slots=True, eq=False)
class TorchLinear:
    """A weight `[out, in]`, packed or not, and its bias."""

    weight: Tensor
    bias: Tensor | None
    packed: bool

    @staticmethod
    def prepare(weight: Tensor, bias: Tensor | None) -> TorchLinear:
        """Pack where that pays: on a CPU with oneDNN, bfloat16 only where that has fast paths."""
        if weight.device.type == "cpu" and can_pack(weight.dtype):
            return TorchLinear(_pack(weight), bias, packed=True)
        return TorchLinear(weight, bias, packed=False)

    def __call__(self, x: Tensor) -> Tensor:
        """`x @ weight.T + bias`."""
        if self.packed:
            return torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")
        return F.linear(x, self.weight, self.bias)


@functools.cache
def can_pack(dtype: torch.dtype) -> bool:
    """Whether this torch and this CPU can pack weights of a dtype; tried once.

    The operations are those that torch's compiler emits for CPUs. They have no public name, so
    whatever fails here means that the plain linear serves.
    """
    if dtype not in _PACKABLE or not torch.backends.mkldnn.is_available():
        return False
    ones = torch.ones(2, 2, dtype=dtype)
    try:
        if dtype == torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
            return False
        tried = TorchLinear(_pack(ones), None, packed=True)(ones)
    except (AttributeError, RuntimeError):
        return False
    return bool((tried == 2.0).all())


def _pack(weight: Tensor) -> Tensor:
    return torch.ops.mkldnn._reorder_linear_weight(weight, _PACKED_FOR_ROWS)
