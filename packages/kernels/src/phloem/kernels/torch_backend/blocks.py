"""Weights in blocks of 32 inputs, and activations as they meet them: rounding, spelled out.

Owns the arithmetic of `BlockWeight`'s formats: making blocks of floats, which gives the bytes that
llama.cpp's quantization gives, taking them apart, and turning one format into another. Nothing
here is fast at computing with blocks; it is what a fast backend is compared with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from phloem.kernels.base import BLOCK_BYTES, BLOCK_SIZE, BlockFormat, BlockWeight, LinearForm
from phloem.kernels.torch_backend.rows import round_rows

_Floats = npt.NDArray[np.float32]
_Bytes = npt.NDArray[np.uint8]

_HALF = BLOCK_SIZE // 2
_ROWS_AT_ONCE = 512
"""Rows that are worked on at a time: few enough for a cache."""


def quantize_blocks(weight: Tensor, format: BlockFormat) -> BlockWeight:
    """Round a float weight `[out, in]` to blocks, every 32 inputs by themselves.

    In float32, `round` going away from zero at halves and a d of 0 giving zeros:

    - q8_0: `d = max(|x|) / 127`, `q = round(x / d)`.
    - q4_1: `m = min(x)`, `d = (max(x) - m) / 15`, `q = floor((x - m) / d + 0.5)`.
    - q4_0: `d = x_j / -8` for the largest `|x_j|`, `q = min(floor(x / d + 8.5), 15)`.

    d and m are then rounded to float16.

    Raises:
        ValueError: if the format is unknown, or rows are not whole blocks.
    """
    rows, inputs = weight.shape
    if format not in _QUANTIZE:
        raise ValueError(f"block format {format!r} is unknown: known are {', '.join(_QUANTIZE)}")
    if inputs % BLOCK_SIZE:
        raise ValueError(
            f"a weight of {inputs} inputs has no whole blocks: their number must be a multiple of "
            f"{BLOCK_SIZE}"
        )
    num_blocks = inputs // BLOCK_SIZE
    blocks = np.empty((rows, num_blocks * BLOCK_BYTES[format]), np.uint8)
    for start in range(0, rows, _ROWS_AT_ONCE):
        part = weight[start : start + _ROWS_AT_ONCE].float().cpu().numpy()
        # Numbers without a finite scale give scales that are not finite: they stay visible.
        with np.errstate(invalid="ignore", over="ignore"):
            made = _QUANTIZE[format](part.reshape(-1, BLOCK_SIZE))
        blocks[start : start + _ROWS_AT_ONCE] = made.reshape(len(part), -1)
    return BlockWeight(format, blocks)


def dequantize_blocks(weight: BlockWeight) -> Tensor:
    """What the blocks mean: `[out, in]` float32, exactly up to the rounding of `d * q + m`."""
    rows, inputs = weight.shape
    values = np.empty((rows, inputs), np.float32)
    for start in range(0, rows, _ROWS_AT_ONCE):
        part = weight.blocks[start : start + _ROWS_AT_ONCE]
        blocks = np.ascontiguousarray(part).reshape(-1, BLOCK_BYTES[weight.format])
        values[start : start + _ROWS_AT_ONCE] = _DEQUANTIZE[weight.format](blocks).reshape(
            len(part), -1
        )
    return torch.from_numpy(values)


def convert_blocks(weight: BlockWeight, format: BlockFormat) -> BlockWeight:
    """The weight in another format: exactly from q4_0, else rounded anew.

    (A q4_0 block is the q4_1 block with `m = -8 * d`, and the q8_0 block with the same d.)
    """
    if weight.format == format:
        return weight
    if weight.format != "q4_0":
        return quantize_blocks(dequantize_blocks(weight), format)
    rows = len(weight.blocks)
    blocks = np.ascontiguousarray(weight.blocks).reshape(-1, BLOCK_BYTES["q4_0"])
    d = _halves(blocks[:, :2])
    if format == "q4_1":
        # m overflows from a d of 8188 on, which no weight has; it would be seen as infinite.
        made = np.concatenate((blocks[:, :2], _as_bytes(d * np.float32(-8)), blocks[:, 2:]), 1)
    else:
        centred = (_nibbles(blocks[:, 2:]).astype(np.int8) - np.int8(8)).view(np.uint8)
        made = np.concatenate((blocks[:, :2], centred), 1)
    return BlockWeight(format, made.reshape(rows, -1))


def round_weight(weight: Tensor, form: LinearForm) -> Tensor:
    """What a float weight `[out, in]` means once it is kept in a form; on its own device.

    Inputs that fill no block are a smaller one.
    """
    if form == "float":
        return weight
    if form == "int8":
        return round_rows(weight)
    inputs = weight.shape[1]
    # Repeating the last input changes neither the largest nor the smallest of a block.
    padded = F.pad(weight[None].float(), (0, -inputs % BLOCK_SIZE), mode="replicate")[0]
    rounded = dequantize_blocks(quantize_blocks(padded, "q4_1"))
    return rounded[:, :inputs].contiguous().to(weight.device)


def round_activations(x: Tensor, bits: int = 8) -> Tensor:
    """What activations `[T, in]` mean to a weight in blocks, see `Ops.linear`: float32 `[T, in]`.

    Numbers too small for a scale become zeros, a group that is not finite becomes NaN.
    """
    inputs = x.shape[-1]
    groups = F.pad(x.float(), (0, -inputs % BLOCK_SIZE)).unflatten(-1, (-1, BLOCK_SIZE))
    scales = groups.abs().amax(dim=-1, keepdim=True) / float(2 ** (bits - 1) - 1)
    tiny = torch.finfo(torch.float32).tiny
    whole = torch.where(scales >= tiny, groups / scales, 0.0).round()
    rounded = torch.where(scales.isfinite(), whole * scales, torch.nan)
    return rounded.flatten(-2)[..., :inputs]


def _quantize_q8_0(x: _Floats) -> _Bytes:
    d = np.abs(x).max(axis=1, keepdims=True) / np.float32(127)
    scaled = x * _reciprocal(d)
    magnitude = np.abs(scaled)
    # Adding a half would round 0.49999997 up.
    whole = np.floor(magnitude)
    q = np.copysign(whole + np.floor(2 * (magnitude - whole)), scaled)
    return np.concatenate((_as_bytes(d), q.astype(np.int8).view(np.uint8)), axis=1)


def _quantize_q4_1(x: _Floats) -> _Bytes:
    m = x.min(axis=1, keepdims=True)
    d = (x.max(axis=1, keepdims=True) - m) / np.float32(15)
    q = np.trunc((x - m) * _reciprocal(d) + np.float32(0.5)).clip(0, 15).astype(np.uint8)
    return np.concatenate((_as_bytes(d), _as_bytes(m), _packed(q)), axis=1)


def _quantize_q4_0(x: _Floats) -> _Bytes:
    largest = np.abs(x).argmax(axis=1)[:, None]
    d = np.take_along_axis(x, largest, axis=1) / np.float32(-8)
    q = np.trunc(x * _reciprocal(d) + np.float32(8.5)).clip(0, 15).astype(np.uint8)
    return np.concatenate((_as_bytes(d), _packed(q)), axis=1)


def _dequantize_q8_0(blocks: _Bytes) -> _Floats:
    return _halves(blocks[:, :2]) * blocks[:, 2:].view(np.int8).astype(np.float32)


def _dequantize_q4_1(blocks: _Bytes) -> _Floats:
    d, m = _halves(blocks[:, :2]), _halves(blocks[:, 2:4])
    return d * _nibbles(blocks[:, 4:]).astype(np.float32) + m


def _dequantize_q4_0(blocks: _Bytes) -> _Floats:
    centred = _nibbles(blocks[:, 2:]).astype(np.float32) - np.float32(8)
    return _halves(blocks[:, :2]) * centred


def _reciprocal(d: _Floats) -> _Floats:
    with np.errstate(divide="ignore"):
        return np.where(d == 0, np.float32(0), np.float32(1) / d)


def _as_bytes(column: _Floats) -> _Bytes:
    return column.astype("<f2").view(np.uint8)


def _halves(columns: _Bytes) -> _Floats:
    return np.ascontiguousarray(columns).view("<f2").astype(np.float32)


def _packed(q: _Bytes) -> _Bytes:
    return q[:, :_HALF] | (q[:, _HALF:] << np.uint8(4))


def _nibbles(packed: _Bytes) -> _Bytes:
    return np.concatenate((packed & np.uint8(15), packed >> np.uint8(4)), axis=1)


_QUANTIZE: Mapping[BlockFormat, Callable[[_Floats], _Bytes]] = {
    "q4_0": _quantize_q4_0,
    "q4_1": _quantize_q4_1,
    "q8_0": _quantize_q8_0,
}
_DEQUANTIZE: Mapping[BlockFormat, Callable[[_Bytes], _Floats]] = {
    "q4_0": _dequantize_q4_0,
    "q4_1": _dequantize_q4_1,
    "q8_0": _dequantize_q8_0,
}
