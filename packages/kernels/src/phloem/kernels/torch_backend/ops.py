"""The torch op table: elementwise ops here; linear, attention and sampling in modules beside."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from phloem.kernels.base import (
    AttentionPlan,
    AttentionSpec,
    BlockWeight,
    Decoder,
    DecoderSpec,
    InputBits,
    KVLayer,
    LinearForm,
    NormResult,
    Penalties,
    RoundedForm,
    SamplingParameters,
    TokenLogprobs,
)
from phloem.kernels.decoder import ComposedDecoder
from phloem.kernels.torch_backend import sampling
from phloem.kernels.torch_backend.attention import plan_attention
from phloem.kernels.torch_backend.hadamard import hadamard
from phloem.kernels.torch_backend.linear import TorchLinear, TorchWeight, can_pack


class TorchOps:
    """The reference that other backends are tested against; see `Ops` for what each op computes."""

    name = "torch"
    fastest_rounded: RoundedForm | None = None

    @staticmethod
    def describe() -> str:
        """The torch version, and what matters for its speed here."""
        packed = "packed oneDNN linears" if can_pack(torch.float32) else "plain linears"
        return f"torch {torch.__version__}, {torch.get_num_threads()} threads, {packed}"

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """See `Ops.rms_norm`."""
        return F.rms_norm(x, weight.shape, weight, eps)

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> NormResult:
        """See `Ops.add_rms_norm`."""
        total = x + residual
        return NormResult(F.rms_norm(total, weight.shape, weight, eps), total)

    def rotary_store_kv(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cos_sin: Tensor,
        kv: KVLayer,
        slots: Tensor,
    ) -> None:
        """See `Ops.rotary_store_kv`."""
        cos, sin = cos_sin.unsqueeze(1).chunk(2, dim=-1)
        _rotate(q, cos, sin)
        _rotate(k, cos, sin)
        kv.store(slots, k, v)

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """See `Ops.silu_mul`."""
        gate, up = gate_up.chunk(2, dim=-1)
        return F.silu(gate).mul_(up)

    def hadamard(self, x: Tensor, block: int) -> Tensor:
        """See `Ops.hadamard`."""
        return hadamard(x, block)

    def prepare_linear(
        self,
        weight: Tensor | BlockWeight,
        bias: Tensor | None = None,
        form: LinearForm = "float",
        input_bits: InputBits = 8,
    ) -> TorchLinear:
        """See `Ops.prepare_linear`; packs weights on CPUs that have oneDNN."""
        return TorchLinear.prepare(TorchWeight.of(weight, form), bias, input_bits)

    def linear(self, x: Tensor, prepared: TorchLinear) -> Tensor:
        """See `Ops.linear`."""
        return prepared(x)

    def prepare_embedding(
        self, weight: Tensor | BlockWeight, form: LinearForm = "float"
    ) -> TorchWeight:
        """See `Ops.prepare_embedding`."""
        return TorchWeight.of(weight, form)

    def tied_head(self, embedding: TorchWeight, input_bits: InputBits = 8) -> TorchLinear:
        """See `Ops.tied_head`."""
        return TorchLinear.prepare(embedding, None, input_bits)

    def embed(self, ids: Tensor, embedding: TorchWeight) -> Tensor:
        """See `Ops.embed`; a table that was quantized gives float32."""
        return F.embedding(ids, embedding.values)

    def decoder(self, spec: DecoderSpec) -> Decoder:
        """See `Ops.decoder`."""
        return ComposedDecoder(self, spec)

    def plan_attention(
        self,
        row_table: npt.NDArray[np.int32],
        rows: npt.NDArray[np.int32],
        query_lens: npt.NDArray[np.int32],
        seq_lens: npt.NDArray[np.int32],
        spec: AttentionSpec,
    ) -> AttentionPlan:
        """See `Ops.plan_attention`."""
        return plan_attention(row_table, rows, query_lens, seq_lens, spec)

    def apply_token_bitmask(
        self, logits: Tensor, rows: npt.NDArray[np.int64], bits: npt.NDArray[np.int32]
    ) -> None:
        """See `Ops.apply_token_bitmask`."""
        sampling.apply_token_bitmask(logits, rows, bits)

    def apply_penalties(self, logits: Tensor, penalties: Penalties) -> None:
        """See `Ops.apply_penalties`."""
        sampling.apply_penalties(logits, penalties)

    def greedy(self, logits: Tensor) -> Tensor:
        """See `Ops.greedy`."""
        return logits.argmax(dim=-1)

    def sample(self, logits: Tensor, parameters: SamplingParameters) -> Tensor:
        """See `Ops.sample`."""
        return sampling.sample(logits, parameters)

    def token_logprobs(self, logits: Tensor, ids: Tensor, top: int) -> TokenLogprobs:
        """See `Ops.token_logprobs`."""
        return sampling.token_logprobs(logits, ids, top)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Rotate `[T, heads, D]` in place by `[T, 1, D / 2]`; in float32, so bfloat16 rounds once."""
    first, second = x.chunk(2, dim=-1)
    low, high = first.float(), second.float()
    rotated = (low * cos).addcmul_(high, sin, value=-1.0)
    second.copy_((high * cos).addcmul_(low, sin))
    first.copy_(rotated)
