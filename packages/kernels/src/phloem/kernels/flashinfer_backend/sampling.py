"""Sampling with FlashInfer's filters and this table's draw.

FlashInfer finds top_k and top_p without a sort, but draws with random numbers of its own and keeps
all tokens that share the last place. A draw here is a function of the caller's uniform number, and
of equally likely tokens the lower ids stay: so what it keeps is trimmed, and the Triton kernel
draws.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from phloem.kernels.base import SamplingParameters
from phloem.kernels.triton_backend import sampling as triton_sampling


def sample(library: Any, logits: Tensor, p: SamplingParameters) -> Tensor:
    """See `Ops.sample`; `library` is the module `flashinfer`."""
    count, vocab_size = logits.shape
    limited = (p.top_k > 0) & (p.top_k < vocab_size)
    nucleus = p.top_p < 1.0
    if not (limited.any() or nucleus.any()):
        return triton_sampling.sample(logits, p)
    device, filters = logits.device, library.sampling
    probs = filters.softmax(logits.contiguous(), torch.from_numpy(p.temperature).to(device))
    if limited.any():
        top_k = torch.from_numpy(np.where(limited, p.top_k, vocab_size).astype(np.int32))
        top_k = top_k.to(device)
        kept = filters.top_k_renorm_probs(probs, top_k, is_deterministic=True)
        probs = _trim_to_count(kept, top_k.unsqueeze(-1))
    if nucleus.any():
        top_p = torch.from_numpy(np.where(nucleus, p.top_p, 1.0).astype(np.float32)).to(device)
        kept = filters.top_p_renorm_probs(probs, top_p, is_deterministic=True)
        # A row without a top_p keeps its tail, which its sum in float32 may not reach.
        kept = torch.where(top_p.unsqueeze(-1) < 1.0, kept, probs)
        probs = _trim_to_mass(probs, kept, top_p.unsqueeze(-1))
    rest = SamplingParameters(
        temperature=np.ones(count, np.float32),
        top_k=np.full(count, -1, np.int32),
        top_p=np.ones(count, np.float32),
        min_p=p.min_p,
        uniforms=p.uniforms,
    )
    return triton_sampling.sample(probs.log(), rest)


def _trim_to_count(probs: Tensor, count: Tensor) -> Tensor:
    """Of the tokens `[n, V]` that share the last place, keep the lower ids, up to `count` `[n, 1]`.

    Sums are 1 again.
    """
    above, equal, _ = _last_place(probs, probs > 0)
    trimmed = _keep(probs, above, equal, count - above.sum(-1, keepdim=True))
    return trimmed / trimmed.sum(-1, keepdim=True)


def _trim_to_mass(probs: Tensor, kept: Tensor, top_p: Tensor) -> Tensor:
    """The same up to the mass `top_p` `[n, 1]`, of `probs` where `kept` is not 0."""
    above, equal, least = _last_place(probs, kept > 0)
    mass = probs.masked_fill(~above, 0.0).sum(-1, keepdim=True, dtype=torch.float64)
    total = probs.sum(-1, keepdim=True, dtype=torch.float64)
    room = ((top_p.double() * total - mass) / least.double()).ceil().clamp_(min=1.0)
    room = room.masked_fill(top_p >= 1.0, float("inf"))
    return _keep(probs, above, equal, room)


def _last_place(probs: Tensor, kept: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Which tokens are likelier than the least of those kept, which as likely, and how likely."""
    least = probs.masked_fill(~kept, float("inf")).amin(-1, keepdim=True)
    return probs > least, probs == least, least


def _keep(probs: Tensor, above: Tensor, equal: Tensor, room: Tensor) -> Tensor:
    return probs.masked_fill(~(above | (equal & (equal.cumsum(-1) <= room))), 0.0)
