"""Attention over a paged KV cache: native plans, and what a KV layer looks like to native code.

Owns what is checked before native code sees a step, the reuse of plans, and the way out for caches
that native code cannot read (float16, fp8, latent ones): the torch reference. How a step is cut is
`native/attention_plan.h`'s, what is computed `native/attention.h`'s.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from phloem.kernels.base import AttentionSpec, KVLayer
from phloem.kernels.cpu_backend.library import Library
from phloem.kernels.cpu_backend.structs import KV_BF16, KV_F32, KV_I8, KVLayerStruct, KVPart
from phloem.kernels.cpu_backend.team import Team
from phloem.kernels.paged_layer import paged_tensors
from phloem.kernels.torch_backend.attention import TorchAttentionPlan
from phloem.kernels.torch_backend.attention import plan_attention as plan_in_torch

Int32 = npt.NDArray[np.int32]

_DTYPES = {torch.float32: KV_F32, torch.bfloat16: KV_BF16, torch.int8: KV_I8}
_POINTER, _INT, _STRIDE = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64


def describe(kv: KVLayer, heads: tuple[int, int, int] | None = None) -> KVLayerStruct | None:
    """The layer as native code takes it, valid as long as its memory; None: it cannot.

    It can where keys and values are both float32, bfloat16, or int8 with float32 scales, in pages
    of one size on the CPU. `heads` is what of a slot will be used: G, D and D_v; None: the caller
    knows that the layer has it.

    Raises:
        ValueError: if the layer could be read, but has other heads.
    """
    tensors = paged_tensors(kv)
    if tensors is None:
        return None
    k, v = tensors.k, tensors.v
    dtype = _DTYPES.get(k.dtype)
    if dtype is None or v.dtype != k.dtype or k.shape[:3] != v.shape[:3]:
        return None
    parts = (k, tensors.k_scales), (v, tensors.v_scales)
    if not all(_readable(elements, scales, dtype == KV_I8) for elements, scales in parts):
        return None
    if heads is not None and heads != (*k.shape[2:], v.shape[3]):
        raise ValueError(
            f"a KV layer of keys {tuple(k.shape[2:])} and values {tuple(v.shape[2:])} in a slot "
            f"does not fit {heads[0]} heads of {heads[1]} and {heads[2]} elements: use the cache "
            "that was made for this model"
        )
    return KVLayerStruct(dtype, k.shape[1], *(_part(*part) for part in parts))


class CpuAttentionPlan:
    """Implements `AttentionPlan`, on a native plan that goes back to its planner in the end."""

    __slots__ = ("_lengths", "_native", "_planner", "_reference", "_spec", "_tokens")

    def __init__(
        self, planner: AttentionPlanner, native: NativePlan, lengths: Int32, spec: AttentionSpec
    ) -> None:
        self._planner = planner
        self._native = native
        self._lengths = lengths
        self._tokens = int(lengths[0].sum())
        self._spec = spec
        self._reference: TorchAttentionPlan | None = None

    def __del__(self) -> None:
        self._planner.give_back(self._native)

    @property
    def handle(self) -> int:
        """What native functions take as `phloem::AttentionPlan*`, while this object lives."""
        return self._native.handle

    def run(self, q: Tensor, kv: KVLayer) -> Tensor:
        """See `AttentionPlan.run`.

        Raises:
            ValueError: if `q` or the layer have other tokens or heads than were planned.
        """
        spec = self._spec
        if q.shape != (self._tokens, spec.num_heads, spec.head_dim):
            raise ValueError(
                f"q of the shape {tuple(q.shape)} does not fit a plan for {self._tokens} tokens: "
                f"give {(self._tokens, spec.num_heads, spec.head_dim)}"
            )
        layer = describe(kv, (spec.num_kv_heads, spec.head_dim, spec.value_dim))
        if layer is None:
            return self._in_torch().run(q, kv)
        return self._planner.attend(self.handle, layer, q, spec.value_dim)

    def _in_torch(self) -> TorchAttentionPlan:
        """The same step as the reference plans it, from the slots that the native plan kept."""
        if self._reference is None:
            query_lens, seq_lens = self._lengths
            table = np.zeros((len(seq_lens), seq_lens.max(initial=0)), np.int32)
            for row, length in enumerate(seq_lens.tolist()):
                table[row, :length] = self._planner.slots(self.handle, row, length)
            rows = np.arange(len(seq_lens), dtype=np.int32)
            self._reference = plan_in_torch(table, rows, query_lens, seq_lens, self._spec)
        return self._reference


class AttentionPlanner:
    """Plans steps for one team; later plans get the memory of those that nobody holds any more."""

    def __init__(self, library: Library, team: Team) -> None:
        self._team = team
        self._free: list[NativePlan] = []
        self._create = library.function("phloem_plan_create", _INT, restype=_POINTER)
        self._destroy = library.function("phloem_plan_destroy", _POINTER)
        self._build = library.function(
            *("phloem_plan_build", _POINTER, _POINTER, _STRIDE, _POINTER, _POINTER, _POINTER),
            *(_INT, _INT, _INT, _INT, _INT, ctypes.c_float),
        )
        self._slots = library.function("phloem_plan_slots", _POINTER, _INT, restype=_POINTER)
        self._attend = library.function(
            *("phloem_attend", _POINTER, _POINTER, ctypes.POINTER(KVLayerStruct)),
            *(_POINTER, _STRIDE, _POINTER, _STRIDE),
        )

    def plan(
        self, row_table: Int32, rows: Int32, query_lens: Int32, seq_lens: Int32, spec: AttentionSpec
    ) -> CpuAttentionPlan:
        """See `Ops.plan_attention`.

        Raises:
            ValueError: if a row has no query, more queries than tokens, or more tokens than the
                table is wide.
            IndexError: if a row is none of the table's.
        """
        _check(row_table, rows, query_lens, seq_lens)
        table = row_table if row_table.strides[1] == 4 else np.ascontiguousarray(row_table)
        rows = np.ascontiguousarray(rows, np.int32)
        lengths = np.stack((query_lens, seq_lens)).astype(np.int32, copy=False)
        native = self._free.pop() if self._free else self.new_plan()
        self._build(
            *(native.handle, table.ctypes.data, table.strides[0] // 4, rows.ctypes.data),
            *(lengths[0].ctypes.data, lengths[1].ctypes.data, len(rows)),
            *(spec.num_heads, spec.num_kv_heads, spec.head_dim, spec.value_dim, spec.scale),
        )
        return CpuAttentionPlan(self, native, lengths, spec)

    def attend(self, plan: int, layer: KVLayerStruct, q: Tensor, value_dim: int) -> Tensor:
        """Attend with `q` `[T, H, D]` to a layer; returns `[T, H, D_v]` in the dtype of `q`.

        That both have the tokens and heads of the plan is the caller's to check.
        """
        tokens, heads, head_dim = q.shape
        queries = q.float()
        if queries.stride()[1:] != (head_dim, 1):
            queries = queries.contiguous()
        out = torch.empty((tokens, heads, value_dim), dtype=torch.float32)
        self._attend(
            *(self._team.handle, plan, layer, queries.data_ptr(), queries.stride(0)),
            *(out.data_ptr(), heads * value_dim),
        )
        return out.to(q.dtype)

    def slots(self, plan: int, row: int, length: int) -> Int32:
        """The first slots of a planned row, a view of the plan."""
        address = ctypes.cast(self._slots(plan, row), ctypes.POINTER(ctypes.c_int32))
        return np.ctypeslib.as_array(address, (length,))

    def give_back(self, native: NativePlan) -> None:
        """Take a plan that is not used any more.

        Of a cycle of garbage the native plan may be gone before the one that gives it back.
        """
        if native.is_there:
            self._free.append(native)

    def new_plan(self) -> NativePlan:
        """One of its own for who plans by itself."""
        return NativePlan(self._create(self._team.threads), self._destroy)


class NativePlan:
    """A plan in native memory, which goes with it."""

    __slots__ = ("__weakref__", "_end", "handle")

    def __init__(self, handle: int, destroy: Callable[[int], None]) -> None:
        self.handle = handle
        self._end = weakref.finalize(self, destroy, handle)
        # Not when Python ends, while a thread may still compute with it.
        self._end.atexit = False

    @property
    def is_there(self) -> bool:
        """Whether the memory is still the plan's."""
        return self._end.alive


def _check(row_table: Int32, rows: Int32, query_lens: Int32, seq_lens: Int32) -> None:
    wrong = (query_lens < 1) | (query_lens > seq_lens)
    if wrong.any():
        bad = int(np.flatnonzero(wrong)[0])
        raise ValueError(
            f"row {bad} has {query_lens[bad]} queries for {seq_lens[bad]} tokens: "
            "there must be at least one query, and no more queries than tokens"
        )
    height, width = row_table.shape
    longest = int(seq_lens.max(initial=0))
    if longest > width:
        raise ValueError(
            f"a row has {longest} tokens, the row table room for {width}: rows must fit the table"
        )
    if rows.max(initial=0) >= height or rows.min(initial=0) < 0:
        raise IndexError(
            f"rows {rows.tolist()} are not all of the row table, which has {height}: "
            "use 0 to that number, less 1"
        )


def _readable(elements: Tensor, scales: Tensor | None, quantized: bool) -> bool:
    if elements.device.type != "cpu" or (elements.stride(3) != 1 and elements.shape[3] > 1):
        return False
    if scales is None:
        return not quantized
    return quantized and scales.dtype == torch.float32


def _part(elements: Tensor, scales: Tensor | None) -> KVPart:
    scale_strides = (0, 0, 0) if scales is None else scales.stride()[:3]
    return KVPart(
        elements.data_ptr(),
        None if scales is None else scales.data_ptr(),
        *elements.stride()[:3],
        *scale_strides,
    )
