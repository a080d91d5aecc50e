"""RMSNorm with and without a residual, and SiLU-mul: a row of activations is a program's work.

Sums are float32 and their order is that of the row's own elements, so a row's bits do not depend
on the others.
"""

# Triton has no type information.
# mypy: disable-error-code="import-untyped, import-not-found, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from phloem.kernels.base import NormResult
from phloem.kernels.triton_backend.launching import launch, power_of_two, rows_of

SILU_BLOCK = 1024
"""Elements of a row that one program of `silu_mul` writes."""


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See `Ops.rms_norm`."""
    x = rows_of(x)
    out = x.new_empty(x.shape)
    if out.numel():
        launch(rms_norm_kernel, len(x))(
            x, weight, out, x.stride(0), x.shape[1], eps, **norm_options(x.shape[1])
        )
    return out


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> NormResult:
    """See `Ops.add_rms_norm`."""
    x, residual = rows_of(x), rows_of(residual)
    out, total = x.new_empty(x.shape), x.new_empty(x.shape)
    if out.numel():
        launch(add_rms_norm_kernel, len(x))(
            x,
            residual,
            weight,
            out,
            total,
            x.stride(0),
            residual.stride(0),
            x.shape[1],
            eps,
            **norm_options(x.shape[1]),
        )
    return NormResult(out, total)


def silu_mul(gate_up: Tensor) -> Tensor:
    """See `Ops.silu_mul`."""
    gate_up = rows_of(gate_up)
    width = gate_up.shape[1] // 2
    out = gate_up.new_empty((len(gate_up), width))
    if out.numel():
        launch(silu_mul_kernel, len(gate_up), -(-width // SILU_BLOCK))(
            gate_up, out, gate_up.stride(0), width, BLOCK=SILU_BLOCK
        )
    return out


def norm_options(hidden: int) -> dict[str, int]:
    """The block that holds a row of `hidden` elements, and the warps that share it."""
    block = power_of_two(hidden)
    return {"BLOCK": block, "num_warps": min(max(block // 512, 1), 16)}


@triton.jit
def rms_norm_kernel(
    x_ptr: tl.tensor,
    weight_ptr: tl.tensor,
    out_ptr: tl.tensor,
    x_stride: tl.tensor,
    hidden: tl.tensor,
    eps: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    """Normalise row `program_id(0)`."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < hidden
    x = tl.load(x_ptr + row * x_stride + columns, mask=inside, other=0.0).to(tl.float32)
    normed = _normalise(x, weight_ptr + columns, inside, hidden, eps)
    tl.store(out_ptr + row * hidden + columns, normed, mask=inside)


@triton.jit
def add_rms_norm_kernel(
    x_ptr: tl.tensor,
    residual_ptr: tl.tensor,
    weight_ptr: tl.tensor,
    out_ptr: tl.tensor,
    total_ptr: tl.tensor,
    x_stride: tl.tensor,
    residual_stride: tl.tensor,
    hidden: tl.tensor,
    eps: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    """Add row `program_id(0)` to its residual, and normalise the sum as it was rounded."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < hidden
    x = tl.load(x_ptr + row * x_stride + columns, mask=inside, other=0.0).to(tl.float32)
    residual_row = residual_ptr + row * residual_stride
    residual = tl.load(residual_row + columns, mask=inside, other=0.0).to(tl.float32)
    total = (x + residual).to(total_ptr.dtype.element_ty)
    tl.store(total_ptr + row * hidden + columns, total, mask=inside)
    normed = _normalise(total.to(tl.float32), weight_ptr + columns, inside, hidden, eps)
    tl.store(out_ptr + row * hidden + columns, normed, mask=inside)


@triton.jit
def _normalise(
    x: tl.tensor, weights: tl.tensor, inside: tl.tensor, hidden: tl.tensor, eps: tl.tensor
) -> tl.tensor:
    mean_square = tl.sum(x * x, axis=0) / hidden
    weight = tl.load(weights, mask=inside, other=0.0).to(tl.float32)
    return x * tl.rsqrt(mean_square + eps) * weight


@triton.jit
def silu_mul_kernel(
    gate_up_ptr: tl.tensor,
    out_ptr: tl.tensor,
    row_stride: tl.tensor,
    width: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    """Elements `[BLOCK * program_id(1), ...)` of row `program_id(0)`."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    gates = gate_up_ptr + row * row_stride + columns
    gate = tl.load(gates, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gates + width, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + row * width + columns, gate * tl.sigmoid(gate) * up, mask=inside)
