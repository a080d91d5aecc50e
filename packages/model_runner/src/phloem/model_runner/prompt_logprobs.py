"""Logprobs of prompt tokens, from the hidden states of a prefill chunk.

Logits of a whole chunk would be large (rows times vocabulary), so they are made and dropped in
pieces.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from phloem.model_runner.models import LlamaModel
from phloem.scheduler.ports import PromptLogprobRequest, PromptLogprobs, TopLogprobs

ROWS_AT_ONCE = 256
"""Rows of logits that are held at a time."""


def prompt_logprobs(
    model: LlamaModel,
    hidden: Tensor,
    starts: npt.NDArray[np.int64],
    requests: Sequence[PromptLogprobRequest],
) -> dict[int, PromptLogprobs]:
    """Answer every request from hidden states `[T, hidden]`; row i starts at `starts[i]`."""
    answers = {}
    for request in requests:
        first = int(starts[request.index]) + request.first
        rows = hidden[first : first + len(request.targets)]
        answers[request.index] = _answer(model, rows, request)
    return answers


def _answer(model: LlamaModel, hidden: Tensor, request: PromptLogprobRequest) -> PromptLogprobs:
    targets = torch.from_numpy(request.targets.astype(np.int64)).to(hidden.device)
    logprobs: list[npt.NDArray[np.float32]] = []
    top: list[TopLogprobs] = []
    for rows, ids in zip(hidden.split(ROWS_AT_ONCE), targets.split(ROWS_AT_ONCE), strict=True):
        found = model.ops.token_logprobs(model.logits(rows), ids, request.top)
        logprobs.append(found.chosen.cpu().numpy())
        if request.top:
            top_ids = found.top_ids.cpu().numpy().astype(np.int32)
            top += map(TopLogprobs, top_ids, found.top_logprobs.cpu().numpy())
    return PromptLogprobs(np.concatenate(logprobs), tuple(top))
