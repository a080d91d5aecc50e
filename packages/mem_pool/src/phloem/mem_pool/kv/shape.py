"""What a model leaves of a token in each layer, and how many bytes that takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch

from phloem.mem_pool.kv.quantization import LIMITS

DTYPES: Final = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "int8": torch.int8,
    "fp8_e4m3": torch.float8_e4m3fn,
}
"""What an element can be, by name. int8 and fp8 have a float32 scale for each token and head."""
SCALE_DTYPE: Final = torch.float32


@dataclass(frozen=True, slots=True)
class KVShape:
    """K and V of each head, or, with `rope_dim`, the latent form of multi-head latent attention.

    In the latent form (MLA, arXiv 2405.04434) a token leaves one vector that keys and values of all
    heads are made of, and one rotated vector that all keys share. They are stored as the two parts
    of a single head.

    Raises:
        ValueError: a size is not positive, the dtype is none of `DTYPES`, or a latent form has more
            heads than one.
    """

    num_layers: int
    """Layers that keep K and V."""
    num_kv_heads: int
    """KV heads per layer (fewer than the query heads under GQA)."""
    head_dim: int
    """Elements per head; of the latent vector, in the latent form."""
    dtype: torch.dtype = torch.float32
    rope_dim: int | None = None
    """Elements of the rotated vector; None: K and V, both of `head_dim`."""

    def __post_init__(self) -> None:
        if min(self.num_layers, *self.parts[0], *self.parts[1]) < 1:
            raise ValueError(f"{self} holds nothing: all sizes must be positive")
        if self.dtype not in DTYPES.values():
            raise ValueError(
                f"a KV pool cannot be {self.dtype}: use one of "
                f"{', '.join(map(str, DTYPES.values()))}"
            )
        if self.is_latent and self.num_kv_heads != 1:
            raise ValueError(
                f"a latent KV shape has one head, not {self.num_kv_heads}: set num_kv_heads to 1, "
                "or leave out rope_dim"
            )

    @property
    def is_latent(self) -> bool:
        """Whether it is the form of MLA."""
        return self.rope_dim is not None

    @property
    def is_quantized(self) -> bool:
        """Whether elements have scales."""
        return self.dtype in LIMITS

    @property
    def parts(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """(heads, elements) of K and of V, or of the latent and of the rotated vector."""
        second = self.head_dim if self.rope_dim is None else self.rope_dim
        return (self.num_kv_heads, self.head_dim), (self.num_kv_heads, second)

    @property
    def bytes_per_token(self) -> int:
        """Bytes of one token over all layers, scales included."""
        scale = SCALE_DTYPE.itemsize if self.is_quantized else 0
        return self.num_layers * sum(
            heads * (dim * self.dtype.itemsize + scale) for heads, dim in self.parts
        )

    @property
    def fingerprint(self) -> str:
        """The form of a token's bytes: pools with equal ones can write each other's."""
        (heads, first), (_, second) = self.parts
        form = f"latent={first} rope={second}" if self.is_latent else f"heads={heads} dim={first}"
        scales = f" scales={SCALE_DTYPE}" if self.is_quantized else ""
        return f"kv {self.dtype}{scales} layers={self.num_layers} {form}"
