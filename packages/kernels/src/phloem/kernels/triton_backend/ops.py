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
    SamplingParameters,
)
from phloem.kernels.torch_backend import TorchOps
from phloem.kernels.triton_backend import attention, elementwise, rotary_store, sampling


class TritonOps(TorchOps):
    """See `Ops` for what each op computes. Tensors are on a GPU, or anywhere in the interpreter.

    What is not defined here is torch's: linears by the vendor's library, embeddings, penalties,
    logprobs, and the order of a decoder's ops.
    """

    name = "triton"

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

    def greedy(self, logits: Tensor) -> Tensor:
        """See `Ops.greedy`."""
        return sampling.greedy(logits)

    def sample(self, logits: Tensor, parameters: SamplingParameters) -> Tensor:
        """See `Ops.sample`."""
        return sampling.sample(logits, parameters)
