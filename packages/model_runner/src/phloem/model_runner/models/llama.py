"""The Llama family: RMSNorm, rotary GQA attention, SwiGLU; Mistral and Qwen2 differ in biases only.

Owns the order of operations and the names of weights. The operations are the kernels', the memory
is the pool's, and which tokens make up a step is the scheduler's.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from phloem.kernels import AttentionSpec, Ops, PreparedLinear, cos_sin, inverse_frequencies
from phloem.model_runner.config import ModelConfig
from phloem.model_runner.models.base import ForwardBatch, KVCache, WeightSource


@dataclass(frozen=True, slots=True, eq=False)
class _Layer:
    input_norm: Tensor
    qkv: PreparedLinear
    output: PreparedLinear
    mlp_norm: Tensor
    gate_up: PreparedLinear
    down: PreparedLinear


class LlamaModel:
    """A Llama on one device, ready to run flat batches."""

    def __init__(
        self,
        config: ModelConfig,
        weights: WeightSource,
        ops: Ops,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """Take the weights from `weights`, in the order of the layers."""
        self.config = config
        self.ops = ops
        self.dtype = dtype
        self.device = device
        self.attention_spec = AttentionSpec(
            config.num_heads, config.num_kv_heads, config.head_dim, dtype, device
        )
        self._frequencies = inverse_frequencies(config.rope, config.head_dim).to(device)
        vocabulary = (config.vocab_size, config.hidden_size)
        self._embedding = weights.take(["model.embed_tokens.weight"], [vocabulary])
        self._layers = tuple(_layer(i, config, weights, ops) for i in range(config.num_layers))
        self._norm = weights.take(["model.norm.weight"], [(config.hidden_size,)])
        head = self._embedding
        if not config.tie_word_embeddings:
            head = weights.take(["lm_head.weight"], [vocabulary])
        self._head = ops.prepare_linear(head)

    def forward(self, batch: ForwardBatch, kv: KVCache) -> Tensor:
        """Run the layers over a step's tokens, writing their K and V to `kv`.

        Returns the hidden states `[T, hidden]` before the final norm: pass the rows that are needed
        to `logits`.
        """
        c, ops = self.config, self.ops
        num_tokens = len(batch.input_ids)
        heads = (c.num_heads, c.num_kv_heads, c.num_kv_heads)
        angles = cos_sin(batch.positions, self._frequencies)
        residual = torch.nn.functional.embedding(batch.input_ids, self._embedding)
        x: Tensor | None = None
        for i, layer in enumerate(self._layers):
            if x is None:
                x = ops.rms_norm(residual, layer.input_norm, c.rms_norm_eps)
            else:
                x, residual = ops.add_rms_norm(x, residual, layer.input_norm, c.rms_norm_eps)
            qkv = ops.linear(x, layer.qkv).view(num_tokens, -1, c.head_dim)
            q, k, v = qkv.split(heads, dim=1)
            cache = kv.layer(i)
            ops.rotary_store_kv(q, k, v, angles, cache, batch.out_slots)
            attended = batch.attention.run(q, cache)
            x = ops.linear(attended.view(num_tokens, -1), layer.output)
            x, residual = ops.add_rms_norm(x, residual, layer.mlp_norm, c.rms_norm_eps)
            x = ops.linear(ops.silu_mul(ops.linear(x, layer.gate_up)), layer.down)
        return residual if x is None else residual.add_(x)

    def logits(self, hidden: Tensor) -> Tensor:
        """Final norm and head of hidden states `[n, hidden]`: logits `[n, vocab]` in float32."""
        normed = self.ops.rms_norm(hidden, self._norm, self.config.rms_norm_eps)
        return self.ops.linear(normed, self._head).float()


def _layer(index: int, c: ModelConfig, weights: WeightSource, ops: Ops) -> _Layer:
    prefix = f"model.layers.{index}."
    queries, keys = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim

    def linear(names: list[str], outs: list[int], inputs: int, bias: bool) -> PreparedLinear:
        weight = weights.take(
            [f"{prefix}{n}.weight" for n in names], [(out, inputs) for out in outs]
        )
        vector = None
        if bias:
            vector = weights.take([f"{prefix}{n}.bias" for n in names], [(out,) for out in outs])
        return ops.prepare_linear(weight, vector)

    def norm(name: str) -> Tensor:
        return weights.take([f"{prefix}{name}.weight"], [(c.hidden_size,)])

    return _Layer(
        input_norm=norm("input_layernorm"),
        qkv=linear(
            ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
            [queries, keys, keys],
            c.hidden_size,
            c.qkv_bias,
        ),
        output=linear(["self_attn.o_proj"], [c.hidden_size], queries, c.output_bias),
        mlp_norm=norm("post_attention_layernorm"),
        gate_up=linear(
            ["mlp.gate_proj", "mlp.up_proj"],
            [c.intermediate_size, c.intermediate_size],
            c.hidden_size,
            c.mlp_bias,
        ),
        down=linear(["mlp.down_proj"], [c.hidden_size], c.intermediate_size, c.mlp_bias),
    )
