"""The KV tensors: keys and values of every layer, one place for each slot. The only module that
needs torch.

It stores and names memory; who may use which slot is `CacheManager`'s business.
"""

from __future__ import annotations

import math

import torch

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
"""The dtypes that a pool can have."""


def bytes_per_token(
    num_layers: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype = torch.float32
) -> int:
    """Bytes that one token takes: K and V, over all layers."""
    return 2 * num_layers * num_kv_heads * head_dim * dtype.itemsize


class KVPool:
    """K and V of each layer, token-major: [num_slots, num_kv_heads, head_dim].

    The memory is touched when it is first written, so on a CPU a pool costs what was used of it at
    its peak. Only the padding page is zeroed: padded reads give finite numbers, and other slots
    hold anything until written.

    Args:
        num_slots: the allocator's `num_slots`, padding page included.
        num_layers: layers of the model that keep K and V.
        num_kv_heads: KV heads per layer (fewer than the query heads under GQA).
        head_dim: elements per head.
        dtype: float32, bfloat16 or float16.
        device: where the tensors live.
        page_size: the allocator's; slots `[0, page_size)` are padding.

    Raises:
        ValueError: a size is not positive, the padding page does not fit, or the dtype is none of
        those.
    """

    def __init__(
        self,
        num_slots: int,
        num_layers: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        *,
        page_size: int = 1,
    ) -> None:
        shape = (num_slots, num_kv_heads, head_dim)
        if min(*shape, num_layers, page_size) < 1 or page_size >= num_slots:
            raise ValueError(
                f"a KV pool of {num_layers} layers of {shape} with {page_size} padding slots "
                "holds nothing: all sizes must be positive, and the slots more than the padding"
            )
        if dtype not in DTYPES:
            raise ValueError(
                f"a KV pool cannot be {dtype}: use one of {', '.join(map(str, DTYPES))}"
            )
        self.num_slots = num_slots
        self.num_layers = num_layers
        self.dtype = dtype
        self._layers = tuple(
            (
                torch.empty(shape, dtype=dtype, device=device),
                torch.empty(shape, dtype=dtype, device=device),
            )
            for _ in range(num_layers)
        )
        for k, v in self._layers:
            k[:page_size].zero_()
            v[:page_size].zero_()

    @property
    def device(self) -> torch.device:
        """Where the tensors live."""
        return self._layers[0][0].device

    @property
    def fingerprint(self) -> str:
        """The form of what `read` gives: pools of one fingerprint can write each other's bytes."""
        heads, dim = self._layers[0][0].shape[1:]
        return f"kv {self.dtype} layers={self.num_layers} heads={heads} dim={dim}"

    def read(self, slots: torch.Tensor, layer: int) -> torch.Tensor:
        """K and V of some slots as bytes, uint8 [n, bytes of a token in one layer]; a copy."""
        k, v = self._layers[layer]
        return torch.cat((k[slots].flatten(1), v[slots].flatten(1)), 1).view(torch.uint8)

    def write(self, slots: torch.Tensor, layer: int, data: torch.Tensor) -> None:
        """Put bytes that `read` gave into slots; `data` is uint8 [n, bytes], on the device."""
        k, v = self._layers[layer]
        both = data.view(self.dtype).view(len(slots), 2, *k.shape[1:])
        k[slots], v[slots] = both[:, 0], both[:, 1]

    @property
    def nbytes(self) -> int:
        """Bytes reserved for all layers, touched or not."""
        k = self._layers[0][0]
        return 2 * self.num_layers * math.prod(k.shape) * k.itemsize

    def k(self, layer: int) -> torch.Tensor:
        """The keys of a layer, [num_slots, num_kv_heads, head_dim]; writes go to the pool."""
        return self._layers[layer][0]

    def v(self, layer: int) -> torch.Tensor:
        """The values of a layer, [num_slots, num_kv_heads, head_dim]; writes go to the pool."""
        return self._layers[layer][1]
