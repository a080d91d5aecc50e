"""The arithmetic of quantized keys and values, pure and exact, so that any kernel can repeat it.

It is symmetric, with one scale for each token and head. A head's D elements x, as float32, become

    amax  = max(|x_0|, ..., |x_{D-1}|, 2^-100)
    scale = amax / limit                          limit: 127 in int8, 448 in fp8 (e4m3)
    q_i   = x_i / scale, rounded                  to the nearest of the dtype, ties to even

and are read as `q_i * scale`. Each of these is one IEEE float32 operation, rounded to nearest: a
kernel that does the same stores the same bits, and a reciprocal instead of the second division does
not. Nothing saturates, since no quotient rounds to more than the limit. The least amax makes a head
of zeros one of zeros, and keeps denormal numbers out.

A value is off by at most scale / 2 in int8; in fp8 by 1/16 of itself, or scale / 1024 if that is
more. Where x is not finite the scale is not, and what is read back is not: it stays visible.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import torch
from torch import Tensor

LIMITS: Final = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
"""The quantized dtypes, and the largest number of each that is used."""
LEAST_AMAX: Final = 2.0**-100


class Quantized(NamedTuple):
    """Heads and their scales."""

    values: Tensor
    """[..., D] of a quantized dtype."""
    scales: Tensor
    """[..., 1] float32"""


def quantize(x: Tensor, dtype: torch.dtype) -> Quantized:
    """Quantize `[..., D]` of any float dtype by the formula above.

    Raises:
        ValueError: the dtype is none of `LIMITS`.
    """
    if dtype not in LIMITS:
        raise ValueError(f"{dtype} is no quantized dtype: use one of {', '.join(map(str, LIMITS))}")
    x = x.float()
    scales = x.abs().amax(-1, keepdim=True).clamp_(min=LEAST_AMAX).div_(LIMITS[dtype])
    quotients = x / scales
    if not dtype.is_floating_point:
        quotients = quotients.round_()
    return Quantized(quotients.to(dtype), scales)


def dequantize(values: Tensor, scales: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """`values * scales` in float32, then in the float `dtype`: `[..., D]`."""
    return (values.float() * scales).to(dtype)
