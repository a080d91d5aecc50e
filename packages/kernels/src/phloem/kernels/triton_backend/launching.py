"""What every kernel's launch needs: a way to launch, and powers of two.

Kernels name their parameters so: `x_ptr` is a tensor outside and an address inside, `x_stride` and
`x_token` count elements, and capitals are what a kernel is compiled for.
"""

from __future__ import annotations

import functools
from typing import Any

from torch import Tensor

FUSION = {"enable_fp_fusion": True}
"""Multiplications and additions may fuse; said explicitly, since Triton's default changes."""


def launch(kernel: Any, *grid: int) -> Any:
    """A kernel, to be called with its arguments for `grid` programs (at least 1 each)."""
    return functools.partial(kernel[grid], **FUSION)


def power_of_two(n: int) -> int:
    """The least power of two that is not below `n`."""
    return 1 << max(n - 1, 0).bit_length()


def rows_of(x: Tensor) -> Tensor:
    """`x` itself if its last axis is contiguous, as kernels take it; a copy otherwise."""
    return x if x.stride(-1) == 1 else x.contiguous()
