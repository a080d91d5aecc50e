"""Plans of paged attention: which program reads what, decided on the host and uploaded once.

Owns the cutting of a step into spans and tiles, and the launches. The arithmetic is that of
`attention_kernels`. Layers that the kernels cannot read (float8, latent) are gathered and attended
by the torch reference, from the same slots.
"""

# Triton has no type information.
# mypy: disable-error-code="import-untyped, import-not-found"

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import triton
from torch import Tensor

from phloem.kernels.base import AttentionPlan, AttentionSpec, KVLayer
from phloem.kernels.paged_layer import PagedTensors, paged_tensors
from phloem.kernels.torch_backend.attention import plan_attention as plan_reference
from phloem.kernels.triton_backend.attention_kernels import (
    SPAN_LENGTH,
    decode_kernel,
    extend_kernel,
    merge_kernel,
)
from phloem.kernels.triton_backend.launching import launch, power_of_two, rows_of

READABLE = (torch.float32, torch.bfloat16, torch.float16, torch.int8)
"""Dtypes of a cache that the kernels read."""
_LEAST_TILE = 16
"""The fewest rows and columns of a matrix product on the device."""

Int32 = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Tiles:
    """Block sizes for one shape of heads and one dtype: the model's, never the batch's.

    Chosen so that nothing spills on any of the targets of `aot`, which measures them.
    """

    decode_m: int
    """(query, head) pairs of a program with few queries."""
    extend_m: int
    """The same of a program with many."""
    n: int
    """Positions of a block; divides `SPAN_LENGTH`."""
    d: int
    v: int
    decode_options: Mapping[str, int]
    """How the kernel for few queries is compiled."""
    extend_options: Mapping[str, int]

    @staticmethod
    def of(spec: AttentionSpec) -> Tiles:
        """For the heads of a model."""
        share = power_of_two(spec.num_heads // spec.num_kv_heads)
        widest = power_of_two(max(spec.head_dim, spec.value_dim, _LEAST_TILE))
        exact = spec.dtype == torch.float32
        small = widest * spec.dtype.itemsize <= 128
        medium = widest * spec.dtype.itemsize <= 256
        queries = (16 if exact else 32) if widest > 128 else (32 if exact else 64)
        return Tiles(
            decode_m=max(_LEAST_TILE, share),
            extend_m=max(queries, share),
            n=16 if widest > 128 else 64 if small else 32,
            d=power_of_two(max(spec.head_dim, _LEAST_TILE)),
            v=power_of_two(max(spec.value_dim, _LEAST_TILE)),
            decode_options={"num_warps": 4 if medium else 8, "num_stages": 2 if medium else 1},
            extend_options={
                "num_warps": 4 if small else 8,
                "num_stages": 2 if medium and not exact else 1,
            },
        )


@dataclass(frozen=True, slots=True)
class Work:
    """A step on the host, all int32."""

    rows: Int32
    """[B, 4]: length, queries, first token, first slot of each row."""
    slots: Int32
    """[sum of lengths] the rows' slots, one row after the other."""
    spans: Int32
    """[m, 2]: row and span, for rows with few queries; the spans of a row are neighbours."""
    merges: Int32
    """[n, 2]: row and the first of its `spans`, for rows with several."""
    tiles: Int32
    """[k, 2]: row and first query, for rows with many queries."""


def lay_out(
    row_table: Int32, rows: Int32, query_lens: Int32, seq_lens: Int32, share: int, tiles: Tiles
) -> Work:
    """Cut a step into work.

    Raises:
        ValueError: if a row has no query, or more queries than tokens.
    """
    wrong = np.flatnonzero((query_lens < 1) | (query_lens > seq_lens))
    if len(wrong):
        bad = int(wrong[0])
        raise ValueError(
            f"row {bad} has {query_lens[bad]} queries for {seq_lens[bad]} tokens: "
            "there must be at least one query, and no more queries than tokens"
        )
    longest = int(seq_lens.max(initial=0))
    slots = row_table[rows, :longest][np.arange(longest) < seq_lens[:, None]]
    first_tokens = np.cumsum(query_lens) - query_lens
    first_slots = np.cumsum(seq_lens) - seq_lens
    few = query_lens <= tiles.decode_m // share
    spans = _steps(np.where(few, seq_lens, 0), SPAN_LENGTH)
    counts = np.bincount(spans[:, 0], minlength=len(rows))
    several = np.flatnonzero(counts > 1)
    extends = _steps(np.where(few, 0, query_lens), tiles.extend_m // share)
    return Work(
        rows=np.stack((seq_lens, query_lens, first_tokens, first_slots), 1).astype(np.int32),
        slots=slots.astype(np.int32),
        spans=spans,
        merges=np.stack((several, (np.cumsum(counts) - counts)[several]), 1).astype(np.int32),
        # Those that see the most positions start first: short ones fill the gaps at the end.
        tiles=extends[::-1] * np.array([1, tiles.extend_m // share], np.int32),
    )


def _steps(lengths: npt.NDArray[Any], step: int) -> Int32:
    """Each row cut into steps: (row, number of the step in its row), in order."""
    counts = -(-lengths // step)
    rows = np.repeat(np.arange(len(lengths)), counts)
    firsts = np.repeat(np.cumsum(counts) - counts, counts)
    return np.stack((rows, np.arange(len(rows)) - firsts), 1).astype(np.int32)


class TritonAttentionPlan:
    """One step, ready to run for every layer."""

    __slots__ = (
        "_merges",
        "_reference",
        "_rows",
        "_slots",
        "_spans",
        "_spec",
        "_tile",
        "_tiles",
        "_work",
    )

    def __init__(self, work: Work, spec: AttentionSpec, tile: Tiles) -> None:
        self._work, self._spec, self._tile = work, spec, tile
        parts = (work.rows, work.slots, work.spans, work.merges, work.tiles)
        flat = torch.from_numpy(np.concatenate([part.reshape(-1) for part in parts]))
        if spec.device.type == "cuda":
            flat = flat.pin_memory()
        uploaded = flat.to(spec.device, non_blocking=True)
        self._rows, self._slots, self._spans, self._merges, self._tiles = uploaded.split(
            [part.size for part in parts]
        )
        self._reference: AttentionPlan | None = None

    def run(self, q: Tensor, kv: KVLayer) -> Tensor:
        """See `AttentionPlan.run`."""
        memory = paged_tensors(kv)
        if memory is None or not readable(memory):
            return self._plan_reference().run(q, kv)
        q = rows_of(q)
        out = q.new_empty((*q.shape[:2], self._spec.value_dim))
        if len(self._work.spans):
            self._run_decodes(q, memory, out)
        if len(self._work.tiles):
            launch(extend_kernel, len(self._work.tiles), self._spec.num_kv_heads)(
                q,
                out,
                self._tiles,
                self._rows,
                self._slots,
                *layer_arguments(q, memory, self._spec),
                **layer_constants(memory, self._spec, self._tile, self._tile.extend_m),
                **self._tile.extend_options,
            )
        return out

    def _run_decodes(self, q: Tensor, memory: PagedTensors, out: Tensor) -> None:
        spec, tile, work = self._spec, self._tile, self._work
        pairs = len(work.spans) * spec.num_kv_heads * tile.decode_m if len(work.merges) else 0
        partials = q.new_empty((pairs, tile.v), dtype=torch.float32)
        stats = q.new_empty((pairs, 2), dtype=torch.float32)
        launch(decode_kernel, len(work.spans), spec.num_kv_heads)(
            q,
            out,
            partials,
            stats,
            self._spans,
            self._rows,
            self._slots,
            *layer_arguments(q, memory, spec),
            **layer_constants(memory, spec, tile, tile.decode_m),
            **tile.decode_options,
        )
        if len(work.merges):
            launch(merge_kernel, len(work.merges), spec.num_kv_heads, tile.decode_m)(
                out,
                partials,
                stats,
                self._merges,
                self._rows,
                **merge_constants(spec, tile),
                **MERGE_OPTIONS,
            )

    def _plan_reference(self) -> AttentionPlan:
        """The same step for layers that no kernel here reads; made when one comes."""
        if self._reference is None:
            lengths, queries = self._work.rows[:, 0], self._work.rows[:, 1]
            table = np.zeros((len(lengths), int(lengths.max(initial=0))), np.int32)
            table[np.arange(table.shape[1]) < lengths[:, None]] = self._work.slots
            rows = np.arange(len(lengths), dtype=np.int32)
            self._reference = plan_reference(table, rows, queries, lengths, self._spec)
        return self._reference


MERGE_OPTIONS = {"num_warps": 1}
"""How the kernel that merges spans is compiled."""


def plan_attention(
    row_table: Int32, rows: Int32, query_lens: Int32, seq_lens: Int32, spec: AttentionSpec
) -> TritonAttentionPlan:
    """See `Ops.plan_attention`.

    Raises:
        ValueError: also for bfloat16 in Triton's interpreter, which takes its bits for integers.
    """
    if spec.dtype == torch.bfloat16 and triton.knobs.runtime.interpret:
        raise ValueError("Triton's interpreter multiplies no bfloat16 matrices: use float32 there")
    tile = Tiles.of(spec)
    share = spec.num_heads // spec.num_kv_heads
    work = lay_out(row_table, rows, query_lens, seq_lens, share, tile)
    return TritonAttentionPlan(work, spec, tile)


def readable(memory: PagedTensors) -> bool:
    """Whether the kernels read this layer: K and V of `READABLE`, with scales where int8."""
    return (memory.k_scales is None) == (memory.v_scales is None) and all(
        plane.dtype in READABLE and (scales is not None) == (plane.dtype == torch.int8)
        for plane, scales in ((memory.k, memory.k_scales), (memory.v, memory.v_scales))
    )


def layer_arguments(q: Tensor, memory: PagedTensors, spec: AttentionSpec) -> tuple[Any, ...]:
    """The part of a kernel's arguments that tells of queries, keys and values."""
    k, v = memory.k, memory.v
    # Without scales their pointers and strides are never used.
    k_scales = k if memory.k_scales is None else memory.k_scales
    v_scales = v if memory.v_scales is None else memory.v_scales
    return (
        k,
        k_scales,
        v,
        v_scales,
        *q.stride()[:2],
        *k.stride()[:3],
        *k_scales.stride()[:3],
        *v.stride()[:3],
        *v_scales.stride()[:3],
        spec.scale * math.log2(math.e),
    )


def layer_constants(
    memory: PagedTensors, spec: AttentionSpec, tile: Tiles, block_m: int
) -> dict[str, Any]:
    """What a kernel is compiled for."""
    return {
        "PAGE": memory.k.shape[1],
        "SHARE": spec.num_heads // spec.num_kv_heads,
        "DIM": spec.head_dim,
        "VALUE_DIM": spec.value_dim,
        "BLOCK_M": block_m,
        "BLOCK_N": tile.n,
        "BLOCK_D": tile.d,
        "BLOCK_V": tile.v,
        "QUANTIZED": memory.k_scales is not None,
    }


def merge_constants(spec: AttentionSpec, tile: Tiles) -> dict[str, int]:
    """What the kernel that merges spans is compiled for."""
    return {
        "SHARE": spec.num_heads // spec.num_kv_heads,
        "VALUE_DIM": spec.value_dim,
        "BLOCK_M": tile.decode_m,
        "BLOCK_V": tile.v,
    }
