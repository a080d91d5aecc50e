"""From logits to tokens: which parameters touch which rows, in which order.

Logprobs are taken first, from the untouched logits. Then logits change in this order: logit_bias,
penalties, suppressed ids, token masks; then greedy rows take the largest and the others draw. The
arithmetic is the kernels'; here is the bookkeeping between batch rows and rows of logits. A row's
token depends on its own logits and parameters only.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from phloem.kernels import GreedyTokens, Ops, Penalties, SamplingParameters
from phloem.scheduler.ports import TokenMasks, TopLogprobs
from phloem.scheduler.randomness import uniform
from phloem.scheduler.sampling import SamplingBatch, TokenHistory

NOT_FINITE = (
    "the model produced NaN or infinite values for this request: check the weights, or use float32"
)
NOTHING_ALLOWED = (
    "no token is allowed here: masks, suppressed ids and logit_bias leave nothing of the vocabulary"
)


@dataclass(frozen=True, slots=True)
class Sampled:
    """What sampling gave for n rows of logits."""

    ids: Tensor
    """[n] int64 on the device; 0 where a row failed."""
    ok: npt.NDArray[np.bool_]
    """[n]"""
    errors: dict[int, str]
    """By batch row."""
    chosen_logprobs: npt.NDArray[np.float32]
    """[n] NaN where not asked for."""
    top_logprobs: tuple[TopLogprobs | None, ...]
    """[n] None where not asked for."""


def wants_greedy_only(sampling: SamplingBatch, rows: npt.NDArray[np.int64]) -> bool:
    """Whether the largest logit, of those that masks allow, is all that any of the batch rows
    `rows` wants.

    Then nobody needs to see the logits: see `greedy`.
    """
    if sampling.changes_logits:
        return False
    return sampling.all_greedy or bool(
        (sampling.temperature[rows] <= 0.0).all() and (sampling.top_logprobs[rows] < 0).all()
    )


def greedy(tokens: GreedyTokens, rows: npt.NDArray[np.int64]) -> Sampled:
    """What `Sampler` would give for batch rows that want their largest logit only."""
    finite = tokens.finite.cpu().numpy()
    ok = finite & tokens.allowed.cpu().numpy()
    ids = (
        tokens.ids if ok.all() else tokens.ids.where(torch.from_numpy(ok).to(tokens.ids.device), 0)
    )
    return _without_logprobs(ids, ok, finite, rows)


def bits_of_rows(masks: TokenMasks, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
    """Masks `[n, words]` of batch rows `rows` `[n]`, ascending; all ones where a row has none."""
    places, bits = _placed(masks, rows)
    if len(places) == len(rows):
        return bits
    every = np.full((len(rows), bits.shape[1]), -1, np.int32)
    every[places] = bits
    return every


class Sampler:
    """Samples rows of logits by the parameters of their batch."""

    def __init__(self, ops: Ops) -> None:
        self._ops = ops

    def __call__(
        self,
        logits: Tensor,
        rows: npt.NDArray[np.int64],
        sampling: SamplingBatch,
        masks: TokenMasks | None,
        newest: Tensor,
    ) -> Sampled:
        """Sample `logits` `[n, V]` float32, which are changed where a parameter asks for it.

        `rows` `[n]` are the batch rows that the logits belong to, ascending. `newest` `[B]` int64
        has each batch row's last relayed token, for histories with `pending`.
        """
        wanted = sampling.top_logprobs[rows]
        raw = _RawLogprobs(self._ops, logits, wanted) if (wanted >= 0).any() else None
        finite = torch.isfinite(logits.sum(dim=-1))
        self._edit(logits, rows, sampling, masks, newest)
        allowed = torch.isfinite(logits.amax(dim=-1))
        ok = (finite & allowed).cpu().numpy()
        ids = torch.zeros(len(rows), dtype=torch.int64, device=logits.device)
        self._choose(ids, logits, rows, sampling, ok)
        sampled = _without_logprobs(ids, ok, finite.cpu().numpy(), rows)
        if raw is None:
            return sampled
        return Sampled(ids, ok, sampled.errors, *raw.of(ids))

    def _edit(
        self,
        logits: Tensor,
        rows: npt.NDArray[np.int64],
        sampling: SamplingBatch,
        masks: TokenMasks | None,
        newest: Tensor,
    ) -> None:
        place = {row: j for j, row in enumerate(rows.tolist())}
        for row, ids, values in sampling.logit_bias:
            if row in place:
                bias = torch.from_numpy(values).to(logits.device)
                logits[place[row], _ids(ids, logits)] += bias
        histories = [(place[h.index], h) for h in sampling.histories if h.index in place]
        if histories:
            self._ops.apply_penalties(logits, _penalties(histories, sampling, newest))
        for row, ids in sampling.suppressed:
            if row in place:
                logits[place[row], _ids(ids, logits)] = float("-inf")
        if masks is not None:
            _apply_masks(self._ops, logits, rows, masks)

    def _choose(
        self,
        ids: Tensor,
        logits: Tensor,
        rows: npt.NDArray[np.int64],
        sampling: SamplingBatch,
        ok: npt.NDArray[np.bool_],
    ) -> None:
        is_greedy = sampling.temperature[rows] <= 0.0
        for chosen, greedy in ((ok & is_greedy, True), (ok & ~is_greedy, False)):
            if not chosen.any():
                continue
            index = torch.from_numpy(np.flatnonzero(chosen)).to(logits.device)
            part = logits if chosen.all() else logits[index]
            if greedy:
                ids[index] = self._ops.greedy(part)
            else:
                ids[index] = self._ops.sample(part, _parameters(sampling, rows[chosen]))


class _RawLogprobs:
    """Keeps what the logprobs of some rows need, before the logits change."""

    def __init__(self, ops: Ops, logits: Tensor, wanted: npt.NDArray[np.int32]) -> None:
        self._ops = ops
        self._wanted = wanted
        self._asked = np.flatnonzero(wanted >= 0)
        self._index = torch.from_numpy(self._asked).to(logits.device)
        self._logits = logits[self._index]

    def of(self, ids: Tensor) -> tuple[npt.NDArray[np.float32], tuple[TopLogprobs | None, ...]]:
        """The logprobs of the chosen ids `[n]`, and the likeliest tokens, by row of the logits."""
        most = int(self._wanted.max())
        found = self._ops.token_logprobs(self._logits, ids[self._index], most)
        chosen = np.full(len(self._wanted), np.nan, np.float32)
        chosen[self._asked] = found.chosen.cpu().numpy()
        top: list[TopLogprobs | None] = [None] * len(self._wanted)
        top_ids = found.top_ids.cpu().numpy().astype(np.int32)
        values = found.top_logprobs.cpu().numpy()
        for k, j in enumerate(self._asked.tolist()):
            n = int(self._wanted[j])
            if n > 0:
                top[j] = TopLogprobs(top_ids[k, :n], values[k, :n])
        return chosen, tuple(top)


def _without_logprobs(
    ids: Tensor,
    ok: npt.NDArray[np.bool_],
    were_finite: npt.NDArray[np.bool_],
    rows: npt.NDArray[np.int64],
) -> Sampled:
    errors = {
        int(rows[j]): NOTHING_ALLOWED if were_finite[j] else NOT_FINITE
        for j in np.flatnonzero(~ok).tolist()
    }
    return Sampled(ids, ok, errors, np.full(len(rows), np.nan, np.float32), (None,) * len(rows))


def _apply_masks(ops: Ops, logits: Tensor, rows: npt.NDArray[np.int64], masks: TokenMasks) -> None:
    """Forbid what masks do, in the rows of logits of their batch rows; others have none."""
    places, bits = _placed(masks, rows)
    if len(places):
        ops.apply_token_bitmask(logits, places, bits)


def _placed(
    masks: TokenMasks, rows: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
    """The masks of batch rows that are among `rows`: their places there, ascending, and bits."""
    index = masks.index.astype(np.int64)
    if len(index) and max(rows[-1], index[-1]) >= len(rows):  # not all of the batch samples
        found = np.isin(index, rows)
        return np.searchsorted(rows, index[found]), masks.bits[found]
    return index, masks.bits


def _ids(ids: npt.NDArray[np.int32], logits: Tensor) -> Tensor:
    return torch.from_numpy(ids.astype(np.int64)).to(logits.device)


def _penalties(
    histories: list[tuple[int, TokenHistory]], sampling: SamplingBatch, newest: Tensor
) -> Penalties:
    """Count the seen tokens of each history, the relayed one included."""
    ids: list[npt.NDArray[np.int32]] = []
    counts: list[npt.NDArray[np.generic]] = []
    lengths: list[int] = []
    for _, history in histories:
        output = history.output
        if history.pending:
            output = np.append(output, np.int32(newest[history.index].item()))
        produced, times = np.unique(output, return_counts=True)
        prompt_only = np.empty(0, np.int32)
        if sampling.repetition_penalty[history.index] != 1.0:
            prompt_only = np.setdiff1d(history.prompt, produced)
        ids += [produced, prompt_only]
        counts += [times, np.zeros(len(prompt_only))]
        lengths.append(len(produced) + len(prompt_only))

    of = np.array([history.index for _, history in histories])
    return Penalties(
        rows=np.repeat(np.array([j for j, _ in histories]), lengths),
        ids=np.concatenate(ids).astype(np.int64),
        output_counts=np.concatenate(counts).astype(np.float32),
        repetition=np.repeat(sampling.repetition_penalty[of], lengths),
        frequency=np.repeat(sampling.frequency_penalty[of], lengths),
        presence=np.repeat(sampling.presence_penalty[of], lengths),
    )


def _parameters(sampling: SamplingBatch, rows: npt.NDArray[np.int64]) -> SamplingParameters:
    return SamplingParameters(
        temperature=sampling.temperature[rows],
        top_k=sampling.top_k[rows],
        top_p=sampling.top_p[rows],
        min_p=sampling.min_p[rows],
        uniforms=uniform(sampling.seeds[rows], sampling.positions[rows]),
    )
