"""One layer of a KV pool: where each element lies, and how tokens are stored and gathered.

Both kinds of layer fit `phloem.kernels.KVLayer`: `store` and `gather` are all that a reference
needs to know. A native kernel takes the tensors (`Plane.tensor`) and repeats `quantization`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from phloem.mem_pool.kv.quantization import dequantize, quantize

Layout: TypeAlias = Literal["token", "page"]
"""How memory is ordered: [slots, heads, dim] or [pages, heads, tokens of a page, dim]."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where planes lie and in which order."""

    num_slots: int
    page_size: int
    layout: Layout
    device: torch.device


class Plane:
    """`[heads, dim]` elements of one dtype for each slot. What was not put there is anything."""

    def __init__(self, place: Place, heads: int, dim: int, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self._heads, self._dim, self._page = heads, dim, place.page_size
        self._by_page = place.layout == "page"
        shape = (place.num_slots * heads, dim) if self._by_page else (place.num_slots, heads * dim)
        self._memory = torch.empty(shape, dtype=dtype, device=place.device)
        # Torch indexes no float8.
        self._elements = self._memory.view(torch.uint8) if dtype.itemsize == 1 else self._memory
        self._head_rows = torch.arange(heads, device=place.device) * place.page_size

    @property
    def tensor(self) -> Tensor:
        """The memory as [pages, page_size, heads, dim], whose strides say the layout.

        The slot s is the token s % page_size of the page s // page_size.
        """
        if self._by_page:
            return self._memory.view(-1, self._heads, self._page, self._dim).transpose(1, 2)
        return self._memory.view(-1, self._page, self._heads, self._dim)

    @property
    def width(self) -> int:
        """Bytes of a slot."""
        return self._heads * self._dim * self.dtype.itemsize

    def take(self, slots: Tensor) -> Tensor:
        """The elements of slots, a copy; `slots` is int64 [n], the result [n, heads, dim]."""
        # `embedding` copies rows in parallel.
        rows = F.embedding(self._rows(slots), self._elements)
        return rows.view(self.dtype).view(len(slots), self._heads, self._dim)

    def put(self, slots: Tensor, elements: Tensor) -> None:
        """Write [n, heads, dim] of this dtype to slots, int64 [n] without repeats."""
        rows = elements.reshape(-1, self._memory.shape[1]).view(self._elements.dtype)
        self._elements.index_copy_(0, self._rows(slots), rows)

    def _rows(self, slots: Tensor) -> Tensor:
        """The rows of memory that hold slots; under a page layout one for each head."""
        if not self._by_page:
            return slots
        token = slots % self._page
        # (page * heads + head) * page_size + token
        firsts = (slots - token) * self._heads + token
        return (firsts.unsqueeze(1) + self._head_rows).flatten()


class Part:
    """One of a layer's two parts: elements, and their scales where they are quantized."""

    def __init__(
        self, place: Place, heads: int, dim: int, dtype: torch.dtype, scales: torch.dtype | None
    ) -> None:
        self.elements = Plane(place, heads, dim, dtype)
        self.scales = None if scales is None else Plane(place, heads, 1, scales)

    @property
    def planes(self) -> tuple[Plane, ...]:
        """All that it is made of."""
        return (self.elements,) if self.scales is None else (self.elements, self.scales)

    def store(self, slots: Tensor, x: Tensor) -> None:
        """Write float `x` [n, heads, dim] to slots, int64 [n] without repeats."""
        if self.scales is None:
            self.elements.put(slots, x.to(self.elements.dtype))
            return
        values, scales = quantize(x, self.elements.dtype)
        self.elements.put(slots, values)
        self.scales.put(slots, scales)

    def gather(self, slots: Tensor, dtype: torch.dtype) -> Tensor:
        """What slots hold, in a float dtype: [n, heads, dim]."""
        values = self.elements.take(slots)
        if self.scales is None:
            return values.to(dtype)
        return dequantize(values, self.scales.take(slots), dtype)


@dataclass(frozen=True, slots=True)
class KVLayer:
    """K and V of one layer."""

    k: Part
    v: Part

    @property
    def parts(self) -> tuple[Part, Part]:
        """Both, in the order of their bytes."""
        return self.k, self.v

    def store(self, slots: Tensor, k: Tensor, v: Tensor) -> None:
        """Write `k` and `v`, [n, heads, dim], to `slots`, int64 [n] without repeats."""
        self.k.store(slots, k)
        self.v.store(slots, v)

    def gather(self, slots: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """The K and V of slots, int64 [n], in a float dtype: [n, heads, dim] each."""
        return self.k.gather(slots, dtype), self.v.gather(slots, dtype)


@dataclass(frozen=True, slots=True)
class LatentKVLayer:
    """The latent and the rotated vectors of one layer (MLA), each with its own scale."""

    latent: Part
    rope: Part

    @property
    def parts(self) -> tuple[Part, Part]:
        """Both, in the order of their bytes."""
        return self.latent, self.rope

    def store(self, slots: Tensor, latent: Tensor, rope: Tensor) -> None:
        """Write `latent` [n, 1, latent_dim] and `rope` [n, 1, rope_dim] to `slots`, int64 [n]."""
        self.latent.store(slots, latent)
        self.rope.store(slots, rope)

    def gather(self, slots: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """What heads attend to once their projections are absorbed in the queries and the output.

        Keys are [n, 1, latent_dim + rope_dim], the latent first; values are the latent.
        """
        latent = self.latent.gather(slots, dtype)
        return torch.cat((latent, self.rope.gather(slots, dtype)), -1), latent
