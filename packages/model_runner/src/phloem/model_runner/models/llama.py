"""The Llama family: RMSNorm, rotary GQA attention, SwiGLU; Mistral and Qwen2 differ in biases only.

Owns the names and shapes of weights and how they are fused. The order of operations is
`phloem.kernels.decoder`'s, the memory is the pool's, and which tokens make up a step is the
scheduler's.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from phloem.kernels import (
    AttentionSpec,
    DecoderLayer,
    DecoderSpec,
    GreedySteps,
    GreedyTokens,
    InputBits,
    KVCache,
    LinearForm,
    Ops,
    PreparedLinear,
    inverse_frequencies,
)
from phloem.model_runner.config import ModelConfig
from phloem.model_runner.models.base import ForwardBatch, WeightSource
from phloem.model_runner.models.rotated import RotatedWeights

_NORM = "model.norm.weight"
_HEAD_INPUT_BITS: InputBits = 16
"""A quantized head would cost a third of what all rounding of activations costs a model (in the
divergence of its distributions from the exact ones), and reads few rows."""


class LlamaModel:
    """A Llama on one device, ready to run flat batches."""

    def __init__(
        self,
        config: ModelConfig,
        weights: WeightSource,
        ops: Ops,
        dtype: torch.dtype,
        device: torch.device,
        form: LinearForm = "float",
    ) -> None:
        """Take the weights from `weights`, in the order of the layers; `form` is for float ones.

        In the form "int8" the model computes in rotated coordinates.
        """
        self.config = config
        self.ops = ops
        self.dtype = dtype
        self.device = device
        self.attention_spec = AttentionSpec(
            config.num_heads, config.num_kv_heads, config.head_dim, dtype, device
        )
        tied, down_block = config.tie_word_embeddings, 0
        self._norm = norm = weights.take([_NORM], [(config.hidden_size,)])
        self._turned_in: int | None = None
        """The blocks in which hidden states are rotated; None: they are not."""
        if form == "int8":
            weights = rotated = RotatedWeights(weights, config, ops)
            tied, down_block = False, rotated.down_block
            self._turned_in, norm = rotated.hidden_block, torch.ones_like(norm)
        vocabulary = (config.vocab_size, config.hidden_size)
        embedding = ops.prepare_embedding(
            weights.take_linear(["model.embed_tokens.weight"], [vocabulary]), form
        )
        layers = tuple(_layer(i, config, weights, ops, form) for i in range(config.num_layers))
        if tied:
            head = ops.tied_head(embedding, _HEAD_INPUT_BITS)
        else:
            table = weights.take_linear(["lm_head.weight"], [vocabulary])
            head = ops.prepare_linear(table, None, form, _HEAD_INPUT_BITS)
        self._decoder = ops.decoder(
            DecoderSpec(
                attention=self.attention_spec,
                embedding=embedding,
                layers=layers,
                norm=norm,
                head=head,
                rms_norm_eps=config.rms_norm_eps,
                frequencies=inverse_frequencies(config.rope, config.head_dim).to(device),
                down_block=down_block,
            )
        )

    def forward(self, batch: ForwardBatch, kv: KVCache, wanted: Tensor | None = None) -> Tensor:
        """Run the layers over a step's tokens, writing their K and V to `kv`.

        Returns the hidden states before the final norm, of all tokens or of those `wanted` `[n]`,
        ascending: pass the rows that are needed to `logits`, or a copy of them if they are needed
        after the next call.
        """
        return self._decoder.forward(
            batch.input_ids, batch.positions, batch.out_slots, batch.attention, kv, wanted
        )

    def logits(self, hidden: Tensor) -> Tensor:
        """Final norm and head of hidden states `[n, hidden]`: logits `[n, vocab]` in float32."""
        return self._decoder.logits(hidden)

    def final_states(self, hidden: Tensor) -> Tensor:
        """The final norm of hidden states `[n, hidden]`, in the model's own coordinates and dtype.

        It is what the head reads, and what `transformers` calls the last hidden state.
        """
        ops, eps = self.ops, self.config.rms_norm_eps
        if self._turned_in is None:
            return ops.rms_norm(hidden, self._norm, eps)
        # It commutes with the rotation, but its weights do not: they come after turning back.
        normed = ops.rms_norm(hidden, torch.ones_like(self._norm), eps)
        return ops.hadamard(normed, self._turned_in) * self._norm

    def greedy(self, hidden: Tensor, bits: npt.NDArray[np.int32] | None = None) -> GreedyTokens:
        """The largest of `logits(hidden)` in each row, which are not made where that is dearer.

        Only tokens with a bit in `bits` `[n, ceil(vocab / 32)]` are looked at, if there are bits.
        """
        return self._decoder.greedy(hidden, bits)

    def greedy_steps(self, newest: npt.NDArray[np.int64] | None = None) -> GreedySteps | None:
        """A shorter way for greedy steps, where the backend has one; see `Decoder.greedy_steps`."""
        return self._decoder.greedy_steps(newest)


def _layer(
    index: int, c: ModelConfig, weights: WeightSource, ops: Ops, form: LinearForm
) -> DecoderLayer:
    prefix = f"model.layers.{index}."
    queries, keys = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim

    def linear(names: list[str], outs: list[int], inputs: int, bias: bool) -> PreparedLinear:
        weight = weights.take_linear(
            [f"{prefix}{n}.weight" for n in names], [(out, inputs) for out in outs]
        )
        vector = None
        if bias:
            vector = weights.take([f"{prefix}{n}.bias" for n in names], [(out,) for out in outs])
        return ops.prepare_linear(weight, vector, form)

    def norm(name: str) -> Tensor:
        return weights.take([f"{prefix}{name}.weight"], [(c.hidden_size,)])

    return DecoderLayer(
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
