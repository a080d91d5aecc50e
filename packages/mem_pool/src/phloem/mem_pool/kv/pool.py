"""A KV pool: the layers of a model, in memory that is indexed by slot.

It stores and names memory; who may use which slot is `CacheManager`'s business.
"""

from __future__ import annotations

import typing

import torch
from torch import Tensor

from phloem.mem_pool.kv.layers import KVLayer, LatentKVLayer, Layout, Part, Place
from phloem.mem_pool.kv.shape import SCALE_DTYPE, KVShape


class KVPool:
    """What tokens leave in each layer, by slot.

    The memory is touched when it is first written, so on a CPU a pool costs what was used of it at
    its peak. Only the padding page is zeroed: padded reads give finite numbers, and other slots
    hold anything until written.

    Args:
        num_slots: the allocator's `num_slots`, padding page included.
        shape: what is kept, and in which dtype.
        device: where the tensors live.
        page_size: the allocator's; slots `[0, page_size)` are padding.
        layout: "token": the heads of a token lie together; "page": the tokens of a page do, head by
            head, as kernels like it that read a page of one head at a time.

    Raises:
        ValueError: the slots are not whole pages and one more than padding, or the layout is none.
    """

    def __init__(
        self,
        num_slots: int,
        shape: KVShape,
        device: torch.device | str = "cpu",
        *,
        page_size: int = 1,
        layout: Layout = "token",
    ) -> None:
        if page_size < 1 or num_slots % page_size or num_slots <= page_size:
            raise ValueError(
                f"a KV pool of {num_slots} slots with {page_size} padding slots holds nothing: it "
                "must have whole pages, and more than the one for padding"
            )
        if layout not in typing.get_args(Layout):
            raise ValueError(f"layout {layout!r} is unknown: use 'token' or 'page'")
        self.shape = shape
        self.num_slots = num_slots
        padding = torch.arange(page_size, device=device)
        self.device = padding.device
        place = Place(num_slots, page_size, layout, self.device)
        self._layers = tuple(_layer(shape, place) for _ in range(shape.num_layers))
        nothing = [torch.zeros(page_size, *part, device=self.device) for part in shape.parts]
        for layer in self._layers:
            layer.store(padding, nothing[0], nothing[1])

    @property
    def num_layers(self) -> int:
        """Layers that keep K and V."""
        return self.shape.num_layers

    @property
    def fingerprint(self) -> str:
        """The form of what `read` gives: pools of one fingerprint can write each other's bytes.

        It does not depend on the layout.
        """
        return self.shape.fingerprint

    @property
    def nbytes(self) -> int:
        """Bytes reserved for all layers, touched or not."""
        return self.num_slots * self.shape.bytes_per_token

    def layer(self, index: int) -> KVLayer | LatentKVLayer:
        """One layer's tensors; what is stored there is in the pool."""
        return self._layers[index]

    def store(self, layer: int, slots: Tensor, k: Tensor, v: Tensor) -> None:
        """Write to slots, int64 [n] without repeats.

        `k` and `v` are [n, heads, dim] of any float dtype; in a latent shape they are the latent
        and the rotated vectors.
        """
        self._layers[layer].store(slots, k, v)

    def gather(
        self, layer: int, slots: Tensor, dtype: torch.dtype = torch.float32
    ) -> tuple[Tensor, Tensor]:
        """Keys and values of slots as attention needs them, in a float dtype: [n, heads, dim]."""
        return self._layers[layer].gather(slots, dtype)

    def read(self, slots: Tensor, layer: int) -> Tensor:
        """What slots hold as bytes, uint8 [n, bytes of a token in one layer]; a copy."""
        planes = (plane for part in self._layers[layer].parts for plane in part.planes)
        return torch.cat([plane.take(slots).flatten(1).view(torch.uint8) for plane in planes], 1)

    def write(self, slots: Tensor, layer: int, data: Tensor) -> None:
        """Put bytes that `read` gave into slots; `data` is uint8 [n, bytes], on the device."""
        planes = [plane for part in self._layers[layer].parts for plane in part.planes]
        for plane, part in zip(planes, data.split([plane.width for plane in planes], 1)):
            # Cloned, since a view at an odd byte cannot be taken as wider elements.
            plane.put(slots, part.clone(memory_format=torch.contiguous_format).view(plane.dtype))


def _layer(shape: KVShape, place: Place) -> KVLayer | LatentKVLayer:
    scales = SCALE_DTYPE if shape.is_quantized else None
    first, second = (Part(place, heads, dim, shape.dtype, scales) for heads, dim in shape.parts)
    return LatentKVLayer(first, second) if shape.is_latent else KVLayer(first, second)
