"""The Triton op table: kernels of this package, and torch where its libraries serve best."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from torch import Tensor

from phloem.kernels.base import (
    AttentionPlan,
    AttentionSpec,
    KVLayer,
    NormResult,
    Penalties,
    PreparedLinear,
    SamplingParameters,
    TokenLogprobs,
)
from phloem.kernels.torch_backend import TorchOps
from phloem.kernels.triton_backend import attention, elementwise, rotary_store, sampling

_TORCH = TorchOps()


class TritonOps:
    """See `Ops` for what each op computes. Tensors are on a GPU, or anywhere in the interpreter."""

    name: str = "triton"

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """See `Ops.rms_norm`."""
        return elementwise.rms_norm(x, weight, eps)

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> NormResult:
        """See `Ops.add_rms_norm`."""
        return elementwise.add_rms_norm(x, residual, weight, eps)

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
        rotary_store.rotary_store_kv(q, k, v, cos_sin, kv, slots)

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """See `Ops.silu_mul`."""
        return elementwise.silu_mul(gate_up)

    def prepare_linear(self, weight: Tensor, bias: Tensor | None = None) -> PreparedLinear:
        """See `Ops.prepare_linear`; the weight stays as it is."""
        return _TORCH.prepare_linear(weight, bias)

    def linear(self, x: Tensor, prepared: PreparedLinear) -> Tensor:
        """See `Ops.linear`; by the vendor's library."""
        return _TORCH.linear(x, prepared)

    def plan_attention(
        self,
        row_table: npt.NDArray[np.int32],
        rows: npt.NDArray[np.int32],
        query_lens: npt.NDArray[np.int32],
        seq_lens: npt.NDArray[np.int32],
        spec: AttentionSpec,
    ) -> AttentionPlan:
        """See `Ops.plan_attention`."""
        return attention.plan_attention(row_table, rows, query_lens, seq_lens, spec)

    def apply_token_bitmask(
        self, logits: Tensor, rows: npt.NDArray[np.int64], bits: npt.NDArray[np.int32]
    ) -> None:
        """See `Ops.apply_token_bitmask`."""
        sampling.apply_token_bitmask(logits, rows, bits)

    def apply_penalties(self, logits: Tensor, penalties: Penalties) -> None:
        """See `Ops.apply_penalties`."""
        _TORCH.apply_penalties(logits, penalties)

    def greedy(self, logits: Tensor) -> Tensor:
        """See `Ops.greedy`."""
        return sampling.greedy(logits)

    def sample(self, logits: Tensor, parameters: SamplingParameters) -> Tensor:
        """See `Ops.sample`."""
        return sampling.sample(logits, parameters)

    def token_logprobs(self, logits: Tensor, ids: Tensor, top: int) -> TokenLogprobs:
        """See `Ops.token_logprobs`."""
        return _TORCH.token_logprobs(logits, ids, top)
