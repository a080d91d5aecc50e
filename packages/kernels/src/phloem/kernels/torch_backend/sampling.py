"""Choosing tokens in torch: masks, penalties, filters, the inverse CDF, logprobs.

A filter never removes tokens from an order: it finds how many of the likeliest tokens stay and the
probability of the last of them. The draw then runs over the vocabulary in id order, so neither the
sort that was used nor the other rows can change a row's token.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from phloem.kernels.base import Penalties, SamplingParameters, TokenLogprobs

_ROWS_AT_ONCE = 16
"""Rows of the vocabulary in float64 that are held at a time."""
_FEW = 256
"""Candidates that are looked at before all of them are sorted."""


def apply_token_bitmask(
    logits: Tensor, rows: npt.NDArray[np.int64], bits: npt.NDArray[np.int32]
) -> None:
    """See `Ops.apply_token_bitmask`."""
    vocab_size = logits.shape[-1]
    words = -(-vocab_size // 32)
    if bits.shape != (len(rows), words):
        raise ValueError(
            f"token masks have the shape {bits.shape}, but {len(rows)} rows and a vocabulary of "
            f"{vocab_size} need {(len(rows), words)}"
        )
    packed = torch.from_numpy(np.ascontiguousarray(bits)).to(logits.device)
    shifts = torch.arange(32, dtype=torch.int32, device=logits.device)
    allowed = ((packed.unsqueeze(-1) >> shifts) & 1).flatten(1)[:, :vocab_size].bool()
    index = torch.from_numpy(rows).to(logits.device)
    logits[index] = logits[index].masked_fill_(~allowed, float("-inf"))


def apply_penalties(logits: Tensor, penalties: Penalties) -> None:
    """See `Ops.apply_penalties`."""

    def on_device(values: npt.NDArray[np.generic]) -> Tensor:
        return torch.from_numpy(values).to(logits.device)

    rows, ids = on_device(penalties.rows), on_device(penalties.ids)
    counts, repetition = on_device(penalties.output_counts), on_device(penalties.repetition)
    values = logits[rows, ids]
    values = torch.where(values > 0, values / repetition, values * repetition)
    values -= counts * on_device(penalties.frequency)
    values -= (counts > 0) * on_device(penalties.presence)
    logits[rows, ids] = values


def token_logprobs(logits: Tensor, ids: Tensor, top: int) -> TokenLogprobs:
    """See `Ops.token_logprobs`."""
    logprobs = torch.log_softmax(logits, dim=-1)
    chosen = logprobs.gather(-1, ids.unsqueeze(-1)).squeeze(-1)
    likeliest = logprobs.topk(min(top, logits.shape[-1]), dim=-1)
    return TokenLogprobs(chosen, likeliest.indices, likeliest.values)


def sample(logits: Tensor, parameters: SamplingParameters) -> Tensor:
    """See `Ops.sample`."""
    ids = torch.empty(len(logits), dtype=torch.int64, device=logits.device)
    for start in range(0, len(logits), _ROWS_AT_ONCE):
        part = slice(start, start + _ROWS_AT_ONCE)
        ids[part] = _sample_rows(logits[part], _slice(parameters, part))
    return ids


def _slice(p: SamplingParameters, part: slice) -> SamplingParameters:
    return SamplingParameters(
        p.temperature[part], p.top_k[part], p.top_p[part], p.min_p[part], p.uniforms[part]
    )


def _sample_rows(logits: Tensor, p: SamplingParameters) -> Tensor:
    vocab_size = logits.shape[-1]
    device = logits.device
    temperature = torch.from_numpy(p.temperature).to(device).unsqueeze(-1)
    probs = torch.softmax(logits / temperature, dim=-1)
    limited = (p.top_k > 0) & (p.top_k < vocab_size)
    for rows, width in _by_width(limited, p, vocab_size):
        _keep_likeliest(probs, rows, width, limited, p)
    only_min_p = np.flatnonzero(~limited & (p.top_p >= 1.0) & (p.min_p > 0.0))
    if len(only_min_p):
        index = torch.from_numpy(only_min_p).to(device)
        chosen = probs[index]
        least = _column(p.min_p[only_min_p], device) * chosen.amax(-1, keepdim=True)
        probs[index] = chosen.masked_fill_(chosen < least, 0.0)
    return _inverse_cdf(probs, torch.from_numpy(p.uniforms).to(device))


def _by_width(
    limited: npt.NDArray[np.bool_], p: SamplingParameters, vocab_size: int
) -> list[tuple[npt.NDArray[np.int64], int]]:
    """Rows that need their likeliest tokens in order, and how many; few apart from many."""
    nucleus = ~limited & (p.top_p < 1.0)
    few = min(_FEW, vocab_size)
    parts = (limited & (p.top_k <= few), limited & (p.top_k > few))
    groups = [(np.flatnonzero(part), int(p.top_k[part].max())) for part in parts if part.any()]
    if nucleus.any():
        groups.append((np.flatnonzero(nucleus), few))
    return groups


def _keep_likeliest(
    probs: Tensor,
    rows: npt.NDArray[np.int64],
    width: int,
    limited: npt.NDArray[np.bool_],
    p: SamplingParameters,
) -> None:
    """Zero what top_k, top_p and min_p remove from these rows, in place.

    `width` covers every `top_k`. Rows without one may need more tokens than that to reach their
    `top_p`: they are done again with all of them.
    """
    device, vocab_size = probs.device, probs.shape[-1]
    index = torch.from_numpy(rows).to(device)
    chosen = probs[index]
    if width < vocab_size:
        ordered = chosen.topk(width, dim=-1).values
    else:
        ordered = chosen.sort(dim=-1, descending=True).values
    mass = ordered.cumsum(dim=-1, dtype=torch.float64)
    top_k = np.where(limited[rows], p.top_k[rows], width).astype(np.int64)
    top_k_column = _column(top_k, device)
    # A softmax without top_k sums to 1 already.
    total = torch.where(
        _column(limited[rows], device), mass.gather(-1, top_k_column - 1), mass.new_ones(())
    )
    wanted = _column(p.top_p[rows].astype(np.float64), device) * total
    wanted = wanted.masked_fill_(_column(p.top_p[rows] >= 1.0, device), float("inf"))
    ranks = torch.arange(width, device=device)
    keep = (ranks < top_k_column) & (mass - ordered < wanted)
    keep &= ordered >= _column(p.min_p[rows], device) * ordered[:, :1]
    kept = _cut(chosen, ordered, keep.sum(-1, keepdim=True).clamp_(min=1))
    short = np.zeros(len(rows), np.bool_)
    if width < vocab_size:
        short = ~limited[rows] & (mass[:, -1:] < wanted).squeeze(-1).cpu().numpy()
    if not short.any():
        probs[index] = kept
        return
    enough = torch.from_numpy(np.flatnonzero(~short)).to(device)
    probs[index[enough]] = kept[enough]
    _keep_likeliest(probs, rows[short], vocab_size, limited, p)


def _cut(probs: Tensor, ordered: Tensor, counts: Tensor) -> Tensor:
    """Keep each row's `counts` `[n, 1]` largest, of equal ones the lower ids; zero the rest."""
    least = ordered.gather(-1, counts - 1)
    above = probs > least
    equal = probs == least
    room = counts - above.sum(-1, keepdim=True)
    keep = above | (equal & (equal.cumsum(-1) <= room))
    return probs.masked_fill(~keep, 0.0)


def _inverse_cdf(probs: Tensor, uniforms: Tensor) -> Tensor:
    """The first id whose cumulative weight exceeds `uniform * total`: `[n]` int64.

    Sums are float64: in float32 the tail of a large vocabulary would be rounded away.
    """
    cdf = probs.cumsum(dim=-1, dtype=torch.float64)
    total = cdf[:, -1:]
    target = torch.minimum(
        uniforms.unsqueeze(-1) * total, torch.nextafter(total, torch.zeros_like(total))
    )
    return torch.searchsorted(cdf, target, right=True).squeeze(-1)


def _column(values: npt.NDArray[np.generic], device: torch.device) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values)).to(device).unsqueeze(-1)
