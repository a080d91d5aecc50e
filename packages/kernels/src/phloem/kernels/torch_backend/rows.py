"""Rounding of whole rows to int8, spelled out: of the form "int8", and of what it multiplies."""

from __future__ import annotations

import torch
from torch import Tensor


def round_rows(x: Tensor) -> Tensor:
    """What rows `[..., n]` mean with 8 bits an element and one scale a row: float32.

    `scale = max(|x_i|) / 127` and `q_i = x_i * (1 / scale)` to nearest, ties to even. A row too
    small for a scale becomes zeros, one that is not finite NaN.
    """
    x = x.float()
    scales = x.abs().amax(dim=-1, keepdim=True) / 127.0
    factors = torch.where(scales >= torch.finfo(torch.float32).tiny, 1.0 / scales, 0.0)
    whole = (x * factors).round()
    return torch.where(scales.isfinite(), whole * scales, torch.nan)
