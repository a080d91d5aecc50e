"""Choosing tokens on the device: argmax, token masks, and the draw from a filtered distribution.

Owns the launches; the kernels are in `sampling_kernels`. A row is one program's work, so a row's
token is a function of its own logits and parameters, exactly.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from phloem.kernels.base import SamplingParameters
from phloem.kernels.triton_backend.launching import launch, rows_of
from phloem.kernels.triton_backend.sampling_kernels import (
    BLOCK,
    SEARCH_BLOCK,
    argmax_kernel,
    bitmask_kernel,
    sample_kernel,
)

MOST_TOKENS = 1 << 20
"""The largest vocabulary whose probabilities, as integers, cannot overflow their sum."""
OPTIONS = {"num_warps": 8}
"""How the kernels that go through a row are compiled."""
MASK_BLOCK = 1024
"""Tokens whose mask bits one program reads."""


def greedy(logits: Tensor) -> Tensor:
    """See `Ops.greedy`."""
    logits = rows_of(logits)
    ids = torch.empty(len(logits), dtype=torch.int64, device=logits.device)
    if len(ids):
        launch(argmax_kernel, len(ids))(
            logits, ids, logits.stride(0), logits.shape[1], BLOCK=BLOCK, **OPTIONS
        )
    return ids


def sample(logits: Tensor, parameters: SamplingParameters) -> Tensor:
    """See `Ops.sample`.

    Raises:
        ValueError: if the vocabulary is larger than `MOST_TOKENS`.
    """
    if logits.shape[1] > MOST_TOKENS:
        raise ValueError(
            f"a vocabulary of {logits.shape[1]} is too large for the sums of this kernel: "
            f"at most {MOST_TOKENS}; use the torch backend"
        )
    logits = rows_of(logits)
    ids = torch.empty(len(logits), dtype=torch.int64, device=logits.device)
    if len(ids):
        launch(sample_kernel, len(ids))(
            logits,
            ids,
            torch.from_numpy(packed(parameters)).to(logits.device),
            logits.stride(0),
            logits.shape[1],
            BLOCK=BLOCK,
            SEARCH_BLOCK=SEARCH_BLOCK,
            **OPTIONS,
        )
    return ids


def packed(p: SamplingParameters) -> npt.NDArray[np.float64]:
    """`[n, 5]`: temperature, top_k, top_p, min_p, uniform. One array is one upload."""
    columns = (p.temperature, p.top_k, p.top_p, p.min_p, p.uniforms)
    return np.stack([np.asarray(column, np.float64) for column in columns], 1)


def apply_token_bitmask(
    logits: Tensor, rows: npt.NDArray[np.int64], bits: npt.NDArray[np.int32]
) -> None:
    """See `Ops.apply_token_bitmask`.

    Raises:
        ValueError: also if the logits' last axis is not contiguous.
    """
    vocab_size = logits.shape[-1]
    words = -(-vocab_size // 32)
    if bits.shape != (len(rows), words):
        raise ValueError(
            f"token masks have the shape {bits.shape}, but {len(rows)} rows and a vocabulary of "
            f"{vocab_size} need {(len(rows), words)}"
        )
    if logits.stride(-1) != 1:
        raise ValueError(f"logits with strides {logits.stride()}: the last axis must be contiguous")
    if len(rows):
        launch(bitmask_kernel, len(rows), -(-vocab_size // MASK_BLOCK))(
            logits,
            torch.from_numpy(np.ascontiguousarray(rows)).to(logits.device),
            torch.from_numpy(np.ascontiguousarray(bits)).to(logits.device),
            logits.stride(0),
            vocab_size,
            words,
            BLOCK=MASK_BLOCK,
        )
