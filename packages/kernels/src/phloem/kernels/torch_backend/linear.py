"""The linear op: plain torch, or oneDNN's packed form of the weight on a CPU.

A quantized weight is kept as the float32 numbers that it means, and multiplied with what rounding
leaves of the activations: no faster than a float one, but what the faster ones compute. The packed
form exists because `F.linear` in float32 goes to the BLAS that torch was built with,
which on some CPUs takes twice to five times as long as oneDNN at the few rows of a decode step.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from phloem.kernels.base import BlockWeight, InputBits, LinearForm, check_input_bits
from phloem.kernels.torch_backend.blocks import (
    dequantize_blocks,
    round_activations,
    round_weight,
)
from phloem.kernels.torch_backend.rows import round_rows

Rounding: TypeAlias = Literal["none", "blocks", "rows"]
"""What shares a scale when activations are rounded: nothing is, every 32 inputs, or all."""

_ROUNDING_OF: Mapping[LinearForm, Rounding] = {"float": "none", "int8": "rows", "int4": "blocks"}

_PACKED_FOR_ROWS = 16
"""The number of rows that the packed layout is chosen for; any number works."""
_PACKABLE = (torch.float32, torch.bfloat16)


@dataclass(frozen=True, slots=True, eq=False)
class TorchLinear:
    """A weight `[out, in]`, packed or not, and its bias."""

    weight: Tensor
    bias: Tensor | None
    packed: bool
    rounding: Rounding = "none"
    input_bits: InputBits = 8
    """Of activations, where they are rounded in blocks."""

    @staticmethod
    def prepare(weight: TorchWeight, bias: Tensor | None, input_bits: InputBits = 8) -> TorchLinear:
        """Pack where that pays: on a CPU with oneDNN, bfloat16 only where that has fast paths."""
        check_input_bits(input_bits)
        values, rounding = weight.values, weight.rounding
        if rounding != "none" and bias is not None:
            bias = bias.float()
        packed = values.device.type == "cpu" and can_pack(values.dtype)
        kept = _pack(values) if packed else values
        return TorchLinear(kept, bias, packed, rounding, input_bits)

    def __call__(self, x: Tensor) -> Tensor:
        """`x @ weight.T + bias`."""
        if self.rounding == "none":
            return self._multiply(x)
        if self.rounding == "rows":
            return self._multiply(round_rows(x)).to(x.dtype)
        return self._multiply(round_activations(x, self.input_bits)).to(x.dtype)

    def _multiply(self, x: Tensor) -> Tensor:
        if self.packed:
            return torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")
        return F.linear(x, self.weight, self.bias)


@dataclass(frozen=True, slots=True, eq=False)
class TorchWeight:
    """The numbers `[out, in]` of a weight, and how what it multiplies is rounded.

    In the dtype in which the weight was given; float32 where it came in blocks.
    """

    values: Tensor
    rounding: Rounding

    @staticmethod
    def of(weight: Tensor | BlockWeight, form: LinearForm) -> TorchWeight:
        """Round a float weight to a form; blocks have theirs."""
        if isinstance(weight, BlockWeight):
            return TorchWeight(dequantize_blocks(weight), "blocks")
        return TorchWeight(round_weight(weight, form), _ROUNDING_OF[form])


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
