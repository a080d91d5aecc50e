"""The shapes that are measured: those of SmolLM2-135M, or smaller ones in tests."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from phloem.kernels import AttentionSpec


@dataclass(frozen=True, slots=True)
class Shapes:
    """A model, and the batches in which its ops are called."""

    hidden: int = 576
    intermediate: int = 1536
    vocab: int = 49_152
    heads: int = 9
    kv_heads: int = 3
    head_dim: int = 64
    layers: int = 30
    linears: tuple[tuple[int, int], ...] = (
        *((960, 576), (576, 576), (3072, 576), (576, 1536)),
        (49_152, 576),
    )
    """Outputs and inputs."""
    rows: tuple[int, ...] = (1, 16, 256)
    """Tokens of a step."""
    decodes: tuple[tuple[int, int, int], ...] = (
        *((1, 300, 0), (1, 1100, 0)),
        *((16, 300, 0), (16, 1100, 0), (16, 1100, 1024)),
    )
    """Requests, their tokens, and how many of those all share."""
    extends: tuple[tuple[int, int], ...] = ((64, 1100), (256, 256))
    """New tokens, and tokens of the request with them."""
    sampled: tuple[int, ...] = (1, 16)
    """Rows of logits."""
    cold_bytes: int = 64 << 20
    """Weights and KV are read in turns from so many: more than caches keep, as in a step."""

    @property
    def attention(self) -> AttentionSpec:
        """What plans are made for."""
        return AttentionSpec(
            self.heads, self.kv_heads, self.head_dim, torch.float32, torch.device("cpu")
        )


QUICK = Shapes(
    linears=((3072, 576), (576, 1536)),
    rows=(1, 16),
    decodes=((1, 300, 0), (16, 1100, 1024)),
    extends=((64, 300),),
    sampled=(1,),
    cold_bytes=32 << 20,
)
