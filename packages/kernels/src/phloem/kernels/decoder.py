"""The layers of the Llama family, put together from the ops of any table.

Owns the order of operations. It is the reference for backends that run a step in one call, and the
way to run for those that do not.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from phloem.kernels.base import AttentionPlan, DecoderSpec, GreedyTokens, KVCache, Ops
from phloem.kernels.rotary import cos_sin


class ComposedDecoder:
    """Implements `Decoder` on an op table."""

    def __init__(self, ops: Ops, spec: DecoderSpec) -> None:
        self._ops = ops
        self._spec = spec

    def forward(
        self,
        input_ids: Tensor,
        positions: Tensor,
        out_slots: Tensor,
        attention: AttentionPlan,
        kv: KVCache,
        wanted: Tensor | None = None,
    ) -> Tensor:
        """See `Decoder.forward`."""
        ops, spec = self._ops, self._spec
        heads = spec.attention.num_heads, spec.attention.num_kv_heads, spec.attention.num_kv_heads
        num_tokens, head_dim = len(input_ids), spec.attention.head_dim
        angles = cos_sin(positions, spec.frequencies)
        residual = ops.embed(input_ids, spec.embedding)
        x: Tensor | None = None
        for i, layer in enumerate(spec.layers):
            if x is None:
                x = ops.rms_norm(residual, layer.input_norm, spec.rms_norm_eps)
            else:
                x, residual = ops.add_rms_norm(x, residual, layer.input_norm, spec.rms_norm_eps)
            qkv = ops.linear(x, layer.qkv).view(num_tokens, -1, head_dim)
            q, k, v = qkv.split(heads, dim=1)
            cache = kv.layer(i)
            ops.rotary_store_kv(q, k, v, angles, cache, out_slots)
            attended = attention.run(q, cache).view(num_tokens, -1)
            if wanted is not None and i == len(spec.layers) - 1:
                attended, residual = attended[wanted], residual[wanted]
            x = ops.linear(attended, layer.output)
            x, residual = ops.add_rms_norm(x, residual, layer.mlp_norm, spec.rms_norm_eps)
            x = ops.silu_mul(ops.linear(x, layer.gate_up))
            if spec.down_block:
                x = ops.hadamard(x, spec.down_block)
            x = ops.linear(x, layer.down)
        return residual if x is None else residual.add_(x)

    def logits(self, hidden: Tensor) -> Tensor:
        """See `Decoder.logits`."""
        normed = self._ops.rms_norm(hidden, self._spec.norm, self._spec.rms_norm_eps)
        return self._ops.linear(normed, self._spec.head).float()

    def greedy(self, hidden: Tensor, bits: npt.NDArray[np.int32] | None = None) -> GreedyTokens:
        """See `Decoder.greedy`."""
        logits = self.logits(hidden)
        finite = logits.sum(dim=-1).isfinite()
        if bits is not None:
            self._ops.apply_token_bitmask(logits, np.arange(len(logits)), bits)
        ids = self._ops.greedy(logits)
        largest = logits.gather(1, ids.unsqueeze(-1)).squeeze(-1)
        return GreedyTokens(ids, finite, largest != -torch.inf)

    def greedy_steps(self, newest: npt.NDArray[np.int64] | None = None) -> None:
        """None: op by op there is no way that would be shorter."""
