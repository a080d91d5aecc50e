"""Plans that run in FlashInfer's paged wrappers: page tables from slots, and when to decline.

Its split of the keys is fixed, so that a row's bits do not depend on the batch. A page size is a
layer's and not known before the first one comes, so FlashInfer plans then, and once for all layers
that are alike. Layers it cannot read (quantized, of another dtype, with slots that fill no pages)
go to the Triton kernels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from phloem.kernels.base import AttentionSpec, KVLayer
from phloem.kernels.paged_layer import PagedTensors, paged_tensors
from phloem.kernels.triton_backend.attention import Tiles, TritonAttentionPlan, Work
from phloem.kernels.triton_backend.attention_kernels import SPAN_LENGTH

_DTYPES = (torch.float16, torch.bfloat16)
_HEAD_DIMS = (64, 128, 256)

Int32 = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class PageTable:
    """The pages of a step's rows, as FlashInfer takes them."""

    indptr: Int32
    """[B + 1] where each row's pages start."""
    indices: Int32
    """[sum of pages]"""
    last_page_len: Int32
    """[B] tokens in each row's last page, 1 to page_size."""


def attends(spec: AttentionSpec) -> bool:
    """Whether FlashInfer has kernels for these heads."""
    return spec.dtype in _DTYPES and spec.head_dim in _HEAD_DIMS and spec.value_dim == spec.head_dim


def page_table(work: Work, page_size: int) -> PageTable | None:
    """The rows' pages; None if a row's slots do not fill pages in order."""
    lengths, firsts = work.rows[:, 0], work.rows[:, 3]
    positions = np.arange(len(work.slots)) - np.repeat(firsts, lengths)
    starts = positions % page_size == 0
    counts = -(-lengths // page_size)
    pages = work.slots[starts] // page_size
    page_of = np.cumsum(starts) - 1
    if not np.array_equal(work.slots, pages[page_of] * page_size + positions % page_size):
        return None
    return PageTable(
        indptr=np.concatenate([[0], np.cumsum(counts)]).astype(np.int32),
        indices=pages.astype(np.int32),
        last_page_len=((lengths - 1) % page_size + 1).astype(np.int32),
    )


class FlashInferPlan:
    """One step; FlashInfer plans it when the first layer shows its pages."""

    __slots__ = ("_library", "_spec", "_tile", "_triton", "_work", "_workspace", "_wrappers")

    def __init__(
        self, library: Any, workspace: Tensor, work: Work, spec: AttentionSpec, tile: Tiles
    ) -> None:
        self._library, self._workspace = library, workspace
        self._work, self._spec, self._tile = work, spec, tile
        self._wrappers: dict[tuple[int, str], Any] = {}
        self._triton: TritonAttentionPlan | None = None

    def run(self, q: Tensor, kv: KVLayer) -> Tensor:
        """See `AttentionPlan.run`."""
        memory = paged_tensors(kv)
        layout = None if memory is None else _layout(memory, self._spec.dtype)
        if memory is None or layout is None:
            return self._plan_triton().run(q, kv)
        wrapper = self._wrapper(memory.k.shape[1], layout)
        if wrapper is None:
            return self._plan_triton().run(q, kv)
        k, v = memory.k, memory.v
        if layout == "HND":
            k, v = k.transpose(1, 2), v.transpose(1, 2)
        return wrapper.run(q.contiguous(), (k, v))

    def _wrapper(self, page_size: int, layout: str) -> Any:
        """FlashInfer's plan for layers of this form; None if the rows fill no pages."""
        form = page_size, layout
        if form not in self._wrappers:
            pages = page_table(self._work, page_size)
            self._wrappers[form] = None if pages is None else self._plan(pages, page_size, layout)
        return self._wrappers[form]

    def _plan(self, pages: PageTable, page_size: int, layout: str) -> Any:
        spec = self._spec
        indptr, indices, last_page_len = (
            torch.from_numpy(part) for part in (pages.indptr, pages.indices, pages.last_page_len)
        )
        common = {
            "page_size": page_size,
            "sm_scale": spec.scale,
            "q_data_type": spec.dtype,
            "kv_data_type": spec.dtype,
            "fixed_split_size": max(SPAN_LENGTH // page_size, 1),
        }
        queries = self._work.rows[:, 1]
        if np.all(queries == 1):
            wrapper = self._library.BatchDecodeWithPagedKVCacheWrapper(
                self._workspace, kv_layout=layout, use_tensor_cores=True, backend="fa2"
            )
            wrapper.plan(
                indptr,
                indices.to(spec.device),
                last_page_len,
                spec.num_heads,
                spec.num_kv_heads,
                spec.head_dim,
                **common,
            )
            return wrapper
        wrapper = self._library.BatchPrefillWithPagedKVCacheWrapper(
            self._workspace, kv_layout=layout, backend="fa2"
        )
        wrapper.plan(
            torch.from_numpy(np.concatenate([[0], np.cumsum(queries)]).astype(np.int32)),
            indptr,
            indices.to(spec.device),
            last_page_len,
            spec.num_heads,
            spec.num_kv_heads,
            spec.head_dim,
            causal=True,
            **common,
        )
        return wrapper

    def _plan_triton(self) -> TritonAttentionPlan:
        if self._triton is None:
            self._triton = TritonAttentionPlan(self._work, self._spec, self._tile)
        return self._triton


def _layout(memory: PagedTensors, dtype: torch.dtype) -> str | None:
    """FlashInfer's name for how a layer lies in memory; None if it has none, or cannot read it."""
    planes = memory.k, memory.v
    if memory.k_scales is not None or any(plane.dtype != dtype for plane in planes):
        return None
    if all(plane.is_contiguous() for plane in planes):
        return "NHD"
    if all(plane.transpose(1, 2).is_contiguous() for plane in planes):
        return "HND"
    return None
