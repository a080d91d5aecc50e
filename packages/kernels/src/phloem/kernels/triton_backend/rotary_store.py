"""Rotary embedding fused with the KV store: a token's heads are a program's work.

The stored bits are those that the layer's own `store` would write: keys are rotated in float32,
rounded to their dtype, and quantized from there by the arithmetic of an int8 cache (one scale for a
token and head, `amax / 127`, division and rounding as IEEE has them). Layers that this kernel
cannot write (float8, latent) are rotated here and store by themselves.
"""

# Triton has no type information.
# mypy: disable-error-code="import-untyped, import-not-found, untyped-decorator"

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from phloem.kernels.base import KVLayer
from phloem.kernels.paged_layer import PagedTensors, paged_tensors
from phloem.kernels.triton_backend.launching import launch, power_of_two

WRITABLE = (torch.float32, torch.bfloat16, torch.float16, torch.int8)
"""Dtypes of a cache that the kernel stores."""
OPTIONS = {"num_warps": 4}
"""How the kernel is compiled."""
_LEAST_AMAX = tl.constexpr(2.0**-100)
_ROUNDER = tl.constexpr(1.5 * 2.0**23)
"""Adding and subtracting it rounds a float32 below 2^22 to an integer, ties to even."""


def rotary_store_kv(
    q: Tensor, k: Tensor, v: Tensor, cos_sin: Tensor, kv: KVLayer, slots: Tensor
) -> None:
    """See `Ops.rotary_store_kv`; the last axis of q, k and v is contiguous.

    Raises:
        ValueError: if an axis is not.
    """
    if not all(x.stride(-1) == 1 for x in (q, k, v, cos_sin)):
        raise ValueError("the last axis of q, k, v and cos_sin must be contiguous: rotate a copy")
    if not len(q):
        return
    memory = paged_tensors(kv)
    if memory is None or not _writable(memory):
        _launch(q, k, v, cos_sin, None, slots)
        kv.store(slots, k, v)
        return
    _launch(q, k, v, cos_sin, memory, slots)


def _writable(memory: PagedTensors) -> bool:
    return (memory.k_scales is None) == (memory.v_scales is None) and all(
        plane.dtype in WRITABLE and (scales is not None) == (plane.dtype == torch.int8)
        for plane, scales in ((memory.k, memory.k_scales), (memory.v, memory.v_scales))
    )


def _launch(
    q: Tensor, k: Tensor, v: Tensor, cos_sin: Tensor, memory: PagedTensors | None, slots: Tensor
) -> None:
    tokens, heads, dim = q.shape
    groups, value_dim = v.shape[1:]
    # Without memory these are never dereferenced.
    k_plane, k_scales, v_plane, v_scales = memory or (k.unsqueeze(1), None, v.unsqueeze(1), None)
    k_scale_plane = k_scales if k_scales is not None else k_plane
    v_scale_plane = v_scales if v_scales is not None else v_plane
    launch(rotary_store_kernel, tokens)(
        q,
        k,
        v,
        cos_sin,
        slots,
        k_plane,
        k_scale_plane,
        v_plane,
        v_scale_plane,
        *q.stride()[:2],
        *k.stride()[:2],
        *v.stride()[:2],
        cos_sin.stride(0),
        *k_plane.stride()[:3],
        *k_scale_plane.stride()[:3],
        *v_plane.stride()[:3],
        *v_scale_plane.stride()[:3],
        **constants(heads, groups, dim, value_dim, memory),
        **OPTIONS,
    )


def constants(
    heads: int, groups: int, dim: int, value_dim: int, memory: PagedTensors | None
) -> dict[str, Any]:
    """What the kernel is compiled for; without `memory` it stores nothing."""
    return {
        "PAGE": 1 if memory is None else memory.k.shape[1],
        "HEADS": heads,
        "GROUPS": groups,
        "DIM": dim,
        "VALUE_DIM": value_dim,
        "BLOCK_HEADS": power_of_two(heads),
        "BLOCK_GROUPS": power_of_two(groups),
        "BLOCK_HALF": power_of_two(dim // 2),
        "BLOCK_VALUE": power_of_two(value_dim),
        "STORE": memory is not None,
        "QUANTIZED": memory is not None and memory.k_scales is not None,
    }


@triton.jit
def rotary_store_kernel(
    q_ptr: tl.tensor,
    k_ptr: tl.tensor,
    v_ptr: tl.tensor,
    cos_sin_ptr: tl.tensor,
    slots_ptr: tl.tensor,
    k_cache_ptr: tl.tensor,
    k_scales_ptr: tl.tensor,
    v_cache_ptr: tl.tensor,
    v_scales_ptr: tl.tensor,
    q_token: tl.tensor,
    q_head: tl.tensor,
    k_token: tl.tensor,
    k_head: tl.tensor,
    v_token: tl.tensor,
    v_head: tl.tensor,
    cos_sin_token: tl.tensor,
    k_cache_page: tl.tensor,
    k_cache_slot: tl.tensor,
    k_cache_head: tl.tensor,
    k_scales_page: tl.tensor,
    k_scales_slot: tl.tensor,
    k_scales_head: tl.tensor,
    v_cache_page: tl.tensor,
    v_cache_slot: tl.tensor,
    v_cache_head: tl.tensor,
    v_scales_page: tl.tensor,
    v_scales_slot: tl.tensor,
    v_scales_head: tl.tensor,
    PAGE: tl.constexpr,
    HEADS: tl.constexpr,
    GROUPS: tl.constexpr,
    DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    BLOCK_GROUPS: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    BLOCK_VALUE: tl.constexpr,
    STORE: tl.constexpr,
    QUANTIZED: tl.constexpr,
) -> None:
    """Rotate the heads of token `program_id(0)`, then store its keys and values."""
    token = tl.program_id(0).to(tl.int64)
    half = tl.arange(0, BLOCK_HALF)
    angles = cos_sin_ptr + token * cos_sin_token + half
    cos = tl.load(angles, mask=half < DIM // 2, other=0.0)[None, :]
    sin = tl.load(angles + DIM // 2, mask=half < DIM // 2, other=0.0)[None, :]

    heads = tl.arange(0, BLOCK_HEADS)[:, None]
    inside = (heads < HEADS) & (half < DIM // 2)[None, :]
    _rotate(q_ptr + token * q_token + heads * q_head + half[None, :], cos, sin, inside, DIM // 2)

    groups = tl.arange(0, BLOCK_GROUPS)[:, None]
    inside = (groups < GROUPS) & (half < DIM // 2)[None, :]
    low, high = _rotate(
        k_ptr + token * k_token + groups * k_head + half[None, :], cos, sin, inside, DIM // 2
    )
    if STORE:
        slot = tl.load(slots_ptr + token)
        page, place = slot // PAGE, slot % PAGE
        keys = k_cache_ptr + page * k_cache_page + place * k_cache_slot
        keys += groups * k_cache_head + half[None, :]
        values = v_cache_ptr + page * v_cache_page + place * v_cache_slot
        columns = tl.arange(0, BLOCK_VALUE)[None, :]
        values_inside = (groups < GROUPS) & (columns < VALUE_DIM)
        v = tl.load(
            v_ptr + token * v_token + groups * v_head + columns, mask=values_inside, other=0.0
        )
        if QUANTIZED:
            low, high, v = low.to(tl.float32), high.to(tl.float32), v.to(tl.float32)
            k_scale = _scale(tl.maximum(_amax(low), _amax(high)))
            v_scale = _scale(_amax(v))
            scales = k_scales_ptr + page * k_scales_page + place * k_scales_slot
            tl.store(scales + groups * k_scales_head, k_scale, mask=groups < GROUPS)
            scales = v_scales_ptr + page * v_scales_page + place * v_scales_slot
            tl.store(scales + groups * v_scales_head, v_scale, mask=groups < GROUPS)
            low, high, v = _quantize(low, k_scale), _quantize(high, k_scale), _quantize(v, v_scale)
        tl.store(keys, low.to(k_cache_ptr.dtype.element_ty), mask=inside)
        tl.store(keys + DIM // 2, high.to(k_cache_ptr.dtype.element_ty), mask=inside)
        v = v.to(v_cache_ptr.dtype.element_ty)
        tl.store(values + groups * v_cache_head + columns, v, mask=values_inside)


@triton.jit
def _rotate(
    firsts: tl.tensor, cos: tl.tensor, sin: tl.tensor, inside: tl.tensor, HALF: tl.constexpr
) -> tl.tuple:
    """Rotate in place; returns what was written, both halves in their dtype."""
    low = tl.load(firsts, mask=inside, other=0.0)
    high = tl.load(firsts + HALF, mask=inside, other=0.0)
    # Warps that a few heads do not fill hold copies: none may load what another has rotated.
    tl.debug_barrier()
    dtype = low.dtype
    low, high = low.to(tl.float32), high.to(tl.float32)
    new_low = (low * cos - high * sin).to(dtype)
    new_high = (high * cos + low * sin).to(dtype)
    tl.store(firsts, new_low, mask=inside)
    tl.store(firsts + HALF, new_high, mask=inside)
    return new_low, new_high


@triton.jit
def _amax(x: tl.tensor) -> tl.tensor:
    """NaN counts as infinite: the largest of a row would not see it, and it must stay visible."""
    return tl.max(tl.where(x != x, float("inf"), tl.abs(x)), axis=1)[:, None]


@triton.jit
def _scale(amax: tl.tensor) -> tl.tensor:
    return tl.div_rn(tl.maximum(amax, _LEAST_AMAX), 127.0)


@triton.jit
def _quantize(x: tl.tensor, scale: tl.tensor) -> tl.tensor:
    return ((tl.div_rn(x, scale) + _ROUNDER) - _ROUNDER).to(tl.int8)
