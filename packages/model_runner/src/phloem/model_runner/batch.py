"""From the scheduler's flat numpy batch to tensors on the model's device.

Everything that the caller may change after `Runner.forward` returned, the row table above all, is
read here and copied.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

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
    relayed: Relayed | None
    """Tokens whose id the runner must fill in; None: no such tokens."""
    last_tokens: Tensor | None
    """[B] int64, the last token of each row; None: every token is its row's last."""
    starts: npt.NDArray[np.int64]
    """[B] the first token of each row."""


class Relayed(NamedTuple):
    """Tokens that the step before has sampled."""

    tokens: npt.NDArray[np.int64]
    """[r] where they go in the batch's tokens."""
    rows: npt.NDArray[np.int32]
    """[r] the row of the row table that each comes from."""


def prepare(
    batch: ModelWorkerBatch, row_table: npt.NDArray[np.int32], ops: Ops, spec: AttentionSpec
) -> PreparedBatch:
    """Bring a batch to the device and plan its attention.

    Raises:
        ValueError: if the lengths of the batch's arrays contradict each other.
    """
    num_tokens, num_rows = len(batch.input_ids), batch.num_rows
    ends = np.cumsum(batch.query_lens, dtype=np.int64)
    if not num_rows or ends[-1] != num_tokens or len(batch.out_slots) != num_tokens:
        raise ValueError(
            f"a batch of {num_rows} rows has query lengths that sum to "
            f"{ends[-1] if num_rows else 0}, but {num_tokens} input ids and "
            f"{len(batch.out_slots)} slots: these must be equal, and there must be a row"
        )
    starts = ends - batch.query_lens
    # A step is short where every row decodes, and each call here then costs as much as a layer.
    tokens = np.empty((3, num_tokens), np.int64)
    tokens[0] = batch.input_ids
    if num_tokens == num_rows:
        np.subtract(batch.seq_lens, 1, out=tokens[1])
    else:
        tokens[1] = np.arange(num_tokens) + np.repeat(batch.seq_lens - ends, batch.query_lens)
    tokens[2] = batch.out_slots
    input_ids, positions, out_slots = torch.from_numpy(tokens).to(spec.device)

    def on_device(values: npt.NDArray[np.integer]) -> Tensor:
        return torch.from_numpy(values.astype(np.int64)).to(spec.device)

    relayed = None
    if (found := np.flatnonzero(tokens[0] == RELAYED)).size:
        rows = batch.rows[np.searchsorted(ends, found, side="right")]
        relayed = Relayed(found, rows)
    return PreparedBatch(
        forward=ForwardBatch(
            input_ids=input_ids,
            positions=positions,
            out_slots=out_slots,
            attention=ops.plan_attention(
                row_table, batch.rows, batch.query_lens, batch.seq_lens, spec
            ),
        ),
        relayed=relayed,
        last_tokens=None if num_tokens == num_rows else on_device(ends - 1),
        starts=starts,
    )
