"""Weights of a model that computes the same in rotated coordinates, where no channel stands out.

A few channels of a transformer's hidden states are many times larger than the rest, so that one
scale for a whole token leaves the others few of an int8's steps. An orthogonal matrix Q, here the
Hadamard transform of blocks, spreads them over many channels. RMSNorm commutes with Q once its
weights are multiplied into the linears that follow; so all that reads hidden states is multiplied
by Q on its inputs, all that writes them on its outputs, and no operation is added. The heads'
values are rotated between the linear that makes them and the one that reads them. Only what the
last linear of a layer reads comes out of a product, and has to be transformed as it comes
(`DecoderSpec.down_block`). This is QuaRot (arXiv 2404.00456) for int8.

Owns which weight is turned on which side. Names and shapes are `llama`'s.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from phloem.kernels import Ops
from phloem.model_runner.config import ModelConfig
from phloem.model_runner.models.base import WeightSource

_MAX_BLOCK = 1024
_MAX_DOWN_BLOCK = 64
"""Larger ones cost a step more than they gain."""

_NORM_BEFORE = {
    "self_attn.q_proj": "input_layernorm",
    "self_attn.k_proj": "input_layernorm",
    "self_attn.v_proj": "input_layernorm",
    "mlp.gate_proj": "post_attention_layernorm",
    "mlp.up_proj": "post_attention_layernorm",
}
_EMBEDDING, _NORM, _HEAD = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"


class RotatedWeights:
    """A `WeightSource` of the rotated model, whose head is no longer its embedding."""

    def __init__(self, source: WeightSource, config: ModelConfig, ops: Ops) -> None:
        self._source = source
        self._config = config
        self._ops = ops
        self.hidden_block = _block_of(config.hidden_size, _MAX_BLOCK)
        """Hidden states are rotated in blocks of this size, by a matrix that is its own inverse."""
        self._head_block = _block_of(config.head_dim, _MAX_BLOCK)
        self.down_block = _block_of(config.intermediate_size, _MAX_DOWN_BLOCK)
        """What `down` reads must be transformed in blocks of this size."""

    def take(self, names: Sequence[str], shapes: Sequence[tuple[int, ...]]) -> Tensor:
        """See `WeightSource.take`: norms, which are ones now, and biases."""
        vectors = [self._vector(name, shape) for name, shape in zip(names, shapes, strict=True)]
        return torch.cat(vectors)

    def take_linear(self, names: Sequence[str], shapes: Sequence[tuple[int, int]]) -> Tensor:
        """See `WeightSource.take_linear`: always floats."""
        matrices = [self._matrix(name, shape) for name, shape in zip(names, shapes, strict=True)]
        return matrices[0] if len(matrices) == 1 else torch.cat(matrices)

    def _vector(self, name: str, shape: tuple[int, ...]) -> Tensor:
        vector = self._source.take([name], [shape])
        if name.endswith("norm.weight"):
            return torch.ones_like(vector)
        if name.endswith("v_proj.bias"):
            return self._turned(vector[None], self._head_block)[0]
        if name.endswith(("o_proj.bias", "down_proj.bias")):
            return self._turned(vector[None], self.hidden_block)[0]
        return vector

    def _matrix(self, name: str, shape: tuple[int, int]) -> Tensor:
        tied = name == _HEAD and self._config.tie_word_embeddings
        weight = self._source.take([_EMBEDDING if tied else name], [shape])
        if name == _EMBEDDING:
            return self._turned(weight, self.hidden_block)
        if name == _HEAD:
            return self._turned(weight * self._norm(_NORM), self.hidden_block)
        prefix, linear = _split(name)
        if linear in _NORM_BEFORE:
            norm = self._norm(f"{prefix}{_NORM_BEFORE[linear]}.weight")
            weight = self._turned(weight * norm, self.hidden_block)
            if linear == "self_attn.v_proj":
                weight = self._turned(weight.T, self._head_block).T
            return weight
        block = self.down_block if linear == "mlp.down_proj" else self._head_block
        return self._turned(self._turned(weight, block).T, self.hidden_block).T

    def _norm(self, name: str) -> Tensor:
        return self._source.take([name], [(self._config.hidden_size,)])

    def _turned(self, x: Tensor, block: int) -> Tensor:
        """`x` `[n, m]` with its rows transformed in blocks: a matrix that is its own inverse."""
        return self._ops.hadamard(x, block)


def _split(name: str) -> tuple[str, str]:
    """`model.layers.3.` and `mlp.up_proj` of a weight's name."""
    linear = ".".join(name.split(".")[-3:-1])
    return name.removesuffix(f"{linear}.weight"), linear


def _block_of(size: int, most: int) -> int:
    """The largest power of two that divides `size`, up to `most`."""
    return min(size & -size, most)
