"""The Walsh-Hadamard transform in torch, and which sizes it has."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def check_block(size: int, block: int) -> None:
    """Refuse a block that is no power of two or does not divide `size`.

    Raises:
        ValueError: if it is not.
    """
    if block < 1 or block & (block - 1) or size % block:
        raise ValueError(
            f"{size} elements cannot be transformed in blocks of {block}: a block must be a power "
            "of two and divide them"
        )


def hadamard(x: Tensor, block: int) -> Tensor:
    """See `Ops.hadamard`; elements meet at the largest distance first.

    Raises:
        ValueError: if `block` is no power of two that divides the last axis of `x`.
    """
    check_block(x.shape[-1], block)
    shape, distance = x.shape, block // 2
    while distance:
        pairs = x.reshape(-1, 2, distance)
        low, high = pairs[:, 0], pairs[:, 1]
        x = torch.stack((low + high, low - high), 1)
        distance //= 2
    return x.reshape(shape) * (1.0 / math.sqrt(block))
