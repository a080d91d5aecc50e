"""From the scheduler's flat numpy batch to tensors on the model's device.

Everything that the caller may change after `Runner.forward` returned, the row table above all, is
read here and copied.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from phloem.kernels import AttentionSpec, Ops
from phloem.model_runner.models import ForwardBatch
from phloem.scheduler.ports import RELAYED, ModelWorkerBatch


@dataclass(frozen=True, slots=True)
class PreparedBatch:
    """A step's tensors, and which of its hidden states are wanted."""

    forward: ForwardBatch
    relayed_at: Tensor | None
    """[r] int64, tokens whose id the runner must fill in; None: no such tokens."""
    relayed_rows: Tensor | None
    """[r] int64, the rows that those tokens come from."""
    last_tokens: Tensor
    """[B] int64, the last token of each row."""
    starts: npt.NDArray[np.int64]
    """[B] the first token of each row."""


def prepare(
    batch: ModelWorkerBatch, row_table: npt.NDArray[np.int32], ops: Ops, spec: AttentionSpec
) -> PreparedBatch:
    """Bring a batch to the device and plan its attention.

    Raises:
        ValueError: if the lengths of the batch's arrays contradict each other.
    """
    query_lens = batch.query_lens.astype(np.int64)
    ends = np.cumsum(query_lens)
    num_tokens = int(ends[-1]) if len(ends) else 0
    if not len(ends) or len(batch.input_ids) != num_tokens or len(batch.out_slots) != num_tokens:
        raise ValueError(
            f"a batch of {len(ends)} rows has query lengths that sum to {num_tokens}, but "
            f"{len(batch.input_ids)} input ids and {len(batch.out_slots)} slots: these must be "
            "equal, and there must be a row"
        )

    def on_device(values: npt.NDArray[np.integer]) -> Tensor:
        return torch.from_numpy(values.astype(np.int64)).to(spec.device)

    starts = ends - query_lens
    positions = np.arange(num_tokens) + np.repeat(batch.seq_lens - ends, query_lens)
    relayed = np.flatnonzero(batch.input_ids == RELAYED)
    relayed_rows = batch.rows[np.searchsorted(ends, relayed, side="right")]
    return PreparedBatch(
        forward=ForwardBatch(
            input_ids=on_device(batch.input_ids),
            positions=on_device(positions),
            out_slots=on_device(batch.out_slots),
            attention=ops.plan_attention(
                row_table, batch.rows, batch.query_lens, batch.seq_lens, spec
            ),
        ),
        relayed_at=on_device(relayed) if len(relayed) else None,
        relayed_rows=on_device(relayed_rows) if len(relayed) else None,
        last_tokens=on_device(ends - 1),
        starts=starts,
    )
