"""The linear op: plain torch, or oneDNN's packed form of the weight on a CPU.

A quantized weight is kept as the float32 numbers that it means, and multiplied with what rounding
leaves of the activations: no faster than a float one, but what the faster ones compute. The packed
form exists because `F.linear` in float32 goes to the BLAS that torch was built with,
which on some CPUs takes twice to five times as long as oneDNN at the few rows of a decode step.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from phloem.kernels.base import BlockWeight, InputTerms, LinearForm
from phloem.kernels.torch_backend.blocks import (
    dequantize_blocks,
    round_activations,
    round_weight,
)

_PACKED_FOR_ROWS = 16
"""The number of rows that the packed layout is chosen for; any number works."""
_PACKABLE = (torch.float32, torch.bfloat16)


@dataclass(frozen=True, slots=True, eq=False)
class TorchLinear:
    """A weight `[out, in]`, packed or not, and its bias."""

    weight: Tensor
    bias: Tensor | None
    packed: bool
    input_terms: int = 0
    """How many roundings of activations are multiplied; 0: the activations themselves."""

    @staticmethod
    def prepare(
        weight: TorchWeight, bias: Tensor | None, input_terms: InputTerms = 1
    ) -> TorchLinear:
        """Pack where that pays: on a CPU with oneDNN, bfloat16 only where that has fast paths."""
        values, rounded = weight.values, weight.rounded
        if rounded and bias is not None:
            bias = bias.float()
        terms = input_terms if rounded else 0
        if values.device.type == "cpu" and can_pack(values.dtype):
            return TorchLinear(_pack(values), bias, packed=True, input_terms=terms)
        return TorchLinear(values, bias, packed=False, input_terms=terms)

    def __call__(self, x: Tensor) -> Tensor:
        """`x @ weight.T + bias`."""
        if not self.input_terms:
            return self._multiply(x)
        rounded = round_activations(x)
        if self.input_terms == 2:
            rounded = rounded + round_activations(x - rounded)
        return self._multiply(rounded).to(x.dtype)

    def _multiply(self, x: Tensor) -> Tensor:
        if self.packed:
            return torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")
        return F.linear(x, self.weight, self.bias)


@dataclass(frozen=True, slots=True, eq=False)
class TorchWeight:
    """The numbers `[out, in]` of a weight, and whether they stand for a quantized one.

    In the dtype in which the weight was given; float32 where it came in blocks.
    """

    values: Tensor
    rounded: bool

    @staticmethod
    def of(weight: Tensor | BlockWeight, form: LinearForm) -> TorchWeight:
        """Round a float weight to a form; blocks have theirs."""
        if isinstance(weight, BlockWeight):
            return TorchWeight(dequantize_blocks(weight), rounded=True)
        return TorchWeight(round_weight(weight, form), rounded=form != "float")


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
