"""What a native kernel needs to see of a KV layer: its memory, as tensors whose strides say where.

Owns the Protocols that a paged layer fits structurally (those of `phloem.mem_pool.kv` do, without
being imported here) and the helpers that find the tensors in a `KVLayer`. Layers without them, such
as latent ones, are served by `KVLayer.store` and `KVLayer.gather`.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol, TypeGuard, runtime_checkable

from torch import Tensor

from phloem.kernels.base import KVLayer
from phloem.kernels.kv_tensors import KVTensors


class PagedPlane(Protocol):
    """`[heads, dim]` elements for each slot."""

    @property
    def tensor(self) -> Tensor:
        """`[pages, page_size, heads, dim]`, a view of the memory; its strides say the layout.

        The slot s is the token `s % page_size` of the page `s // page_size`. The last dimension is
        contiguous.
        """
        ...


@runtime_checkable
class PagedPart(Protocol):
    """The keys or the values of a layer."""

    @property
    def elements(self) -> PagedPlane:
        """float32, bfloat16, float16, int8 or float8."""
        ...

    @property
    def scales(self) -> PagedPlane | None:
        """float32 with `dim` 1: an element is worth itself times its scale. None: it is as is."""
        ...


@runtime_checkable
class PagedKVLayer(Protocol):
    """Keys and values of one layer."""

    @property
    def k(self) -> PagedPart:
        """Keys, `[G, D]` a slot."""
        ...

    @property
    def v(self) -> PagedPart:
        """Values, `[G, D_v]` a slot."""
        ...


class PagedTensors(NamedTuple):
    """The memory of a layer, each `[pages, page_size, G, dim]` with strides of its own."""

    k: Tensor
    k_scales: Tensor | None
    v: Tensor
    v_scales: Tensor | None


def is_paged(kv: KVLayer) -> TypeGuard[PagedKVLayer]:
    """Whether the layer's keys and values are paged planes that a kernel can read by itself."""
    return (
        isinstance(kv, PagedKVLayer) and isinstance(kv.k, PagedPart) and isinstance(kv.v, PagedPart)
    )


def paged_tensors(kv: KVLayer) -> PagedTensors | None:
    """The memory of a paged layer, or of `KVTensors` as pages of one slot; None: it has no such."""
    if isinstance(kv, KVTensors):
        return PagedTensors(kv.k.unsqueeze(1), None, kv.v.unsqueeze(1), None)
    if not is_paged(kv):
        return None
    return PagedTensors(*_tensors(kv.k), *_tensors(kv.v))


def _tensors(part: PagedPart) -> tuple[Tensor, Tensor | None]:
    return part.elements.tensor, None if part.scales is None else part.scales.tensor
