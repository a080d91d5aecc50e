"""4-bit weights of AWQ and GPTQ checkpoints as blocks: `BlockWeight` of the format q4_1.

Owns the bit layouts of these checkpoints. Both mean `scale * (q - zero)`, with a scale and a zero
for every group of inputs of an output; a q4_1 block means `d * q + m`. So `d = scale`, and
`m = -zero * scale` rounded to float16: off by at most `2^-11` of itself, and by nothing where zero
is a power of two, as in symmetric checkpoints. The q are kept bit for bit.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from phloem.kernels.base import BLOCK_SIZE, BlockWeight

GPTQVersion: TypeAlias = Literal["v1", "v2"]
"""`v1` checkpoints (`checkpoint_format: gptq`) store zeros minus one, `v2` as they are."""

_Words = npt.NDArray[np.int32]
_Bytes = npt.NDArray[np.uint8]
_Scales = npt.NDArray[np.floating]

_PER_WORD = 8
_AWQ_NIBBLES = np.array([0, 2, 4, 6, 1, 3, 5, 7])
"""The output, of eight, that each 4 bits of a word belong to, the lowest bits first."""


def awq_blocks(qweight: _Words, qzeros: _Words, scales: _Scales) -> BlockWeight:
    """A weight of an AWQ checkpoint (`gemm` version), arXiv 2306.00978.

    Args:
        qweight: `[in, out / 8]` int32, eight outputs in a word in the order 0 2 4 6 1 3 5 7.
        qzeros: `[groups, out / 8]` int32, in the same order.
        scales: `[groups, out]`

    Raises:
        ValueError: if the shapes do not fit each other, or groups are no whole blocks.
    """
    inputs, outputs = len(qweight), qweight.shape[1] * _PER_WORD
    _check("AWQ", inputs, outputs, qzeros, scales)
    q = _by_output(qweight, _AWQ_NIBBLES)
    zeros = _by_output(qzeros, _AWQ_NIBBLES)
    return _blocks(q, zeros, scales)


def gptq_blocks(
    qweight: _Words,
    qzeros: _Words,
    scales: _Scales,
    g_idx: npt.NDArray[np.integer] | None = None,
    *,
    version: GPTQVersion = "v1",
) -> BlockWeight:
    """A 4-bit weight of a GPTQ checkpoint, arXiv 2210.17323.

    Args:
        qweight: `[in / 8, out]` int32, eight inputs in a word, the first in the lowest bits.
        qzeros: `[groups, out / 8]` int32, eight outputs in a word.
        scales: `[groups, out]`
        g_idx: `[in]` the group of each input; None: groups of equal size, one behind the other.

    Raises:
        ValueError: if the shapes do not fit each other, if groups are no whole blocks, or if
            `g_idx` says that inputs were quantized in another order (act-order).
    """
    inputs, outputs = len(qweight) * _PER_WORD, qweight.shape[1]
    _check("GPTQ", inputs, outputs, qzeros, scales)
    if g_idx is not None and not np.array_equal(
        g_idx, np.arange(inputs) // (inputs // len(scales))
    ):
        raise ValueError(
            "this GPTQ checkpoint orders its inputs by activation (desc_act), so that a group is "
            "no run of inputs: use one that was quantized with desc_act off"
        )
    q = _nibbles(qweight).transpose(0, 2, 1).reshape(inputs, outputs)
    zeros = _by_output(qzeros, np.arange(_PER_WORD))
    return _blocks(q, zeros + np.uint8(version == "v1"), scales)


def _check(kind: str, inputs: int, outputs: int, qzeros: _Words, scales: _Scales) -> None:
    groups = len(scales)
    if scales.shape != (groups, outputs) or qzeros.shape != (groups, outputs // _PER_WORD):
        raise ValueError(
            f"an {kind} weight of {inputs} inputs and {outputs} outputs does not fit scales of the "
            f"shape {scales.shape} and zeros of the shape {qzeros.shape}: only 4-bit weights with "
            "[groups, out] scales and [groups, out / 8] zeros are known"
        )
    if not groups or inputs % groups or inputs // groups % BLOCK_SIZE:
        raise ValueError(
            f"{groups} groups of {inputs} inputs are not whole blocks: a group must be a multiple "
            f"of {BLOCK_SIZE} inputs"
        )


def _nibbles(words: _Words) -> _Bytes:
    """`[rows, columns]` words as `[rows, columns, 8]` numbers, the lowest bits first."""
    shifts = np.arange(0, 32, 4, dtype=np.uint32)
    return (words.view(np.uint32)[..., None] >> shifts & np.uint32(15)).astype(np.uint8)


def _by_output(words: _Words, places: npt.NDArray[np.integer]) -> _Bytes:
    """`[rows, out / 8]` words as `[rows, out]` numbers: bits i belong to output `places[i]`."""
    numbers = _nibbles(words)
    ordered = np.empty_like(numbers)
    ordered[..., places] = numbers
    return ordered.reshape(len(words), -1)


def _blocks(q: _Bytes, zeros: _Bytes, scales: _Scales) -> BlockWeight:
    """Blocks of `q` `[in, out]` with `zeros` and `scales` `[groups, out]`."""
    inputs, outputs = q.shape
    d = scales.astype("<f2")
    m = (-zeros.astype(np.float32) * d.astype(np.float32)).astype("<f2")
    # [out, blocks, bytes of a block]: d and m of the block's group, then the q.
    repeats = inputs // len(scales) // BLOCK_SIZE
    head = np.stack((d.T, m.T), axis=-1).repeat(repeats, axis=1).view(np.uint8)
    halves = np.ascontiguousarray(q.T).reshape(outputs, -1, 2, BLOCK_SIZE // 2)
    packed = halves[:, :, 0] | halves[:, :, 1] << np.uint8(4)
    return BlockWeight("q4_1", np.concatenate((head, packed), axis=-1).reshape(outputs, -1))
