"""The FlashInfer op table: its attention and sampling filters, everything else from Triton's."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from phloem.kernels.base import AttentionPlan, AttentionSpec, SamplingParameters
from phloem.kernels.flashinfer_backend import sampling
from phloem.kernels.flashinfer_backend.attention import FlashInferPlan, attends
from phloem.kernels.triton_backend import attention
from phloem.kernels.triton_backend.ops import TritonOps

_WORKSPACE_BYTES = 128 << 20
"""What FlashInfer's manual recommends."""


class FlashInferOps(TritonOps):
    """See `Ops` for what each op computes. `library` is the module `flashinfer`."""

    name = "flashinfer"

    def __init__(self, library: Any) -> None:
        self._library = library
        self._workspaces: dict[torch.device, Tensor] = {}

    def plan_attention(
        self,
        row_table: npt.NDArray[np.int32],
        rows: npt.NDArray[np.int32],
        query_lens: npt.NDArray[np.int32],
        seq_lens: npt.NDArray[np.int32],
        spec: AttentionSpec,
    ) -> AttentionPlan:
        """See `Ops.plan_attention`."""
        if not attends(spec):
            return super().plan_attention(row_table, rows, query_lens, seq_lens, spec)
        tile = attention.Tiles.of(spec)
        share = spec.num_heads // spec.num_kv_heads
        work = attention.lay_out(row_table, rows, query_lens, seq_lens, share, tile)
        return FlashInferPlan(self._library, self._workspace(spec.device), work, spec, tile)

    def sample(self, logits: Tensor, parameters: SamplingParameters) -> Tensor:
        """See `Ops.sample`."""
        return sampling.sample(self._library, logits, parameters)

    def _workspace(self, device: torch.device) -> Tensor:
        """Scratch memory that the plans of a device share: they run one after the other."""
        if device not in self._workspaces:
            self._workspaces[device] = torch.empty(
                _WORKSPACE_BYTES, dtype=torch.uint8, device=device
            )
        return self._workspaces[device]
