"""The device's part of choosing tokens: no sort, no float sums, one program for a row.

A filter is a threshold: the key of the last token that stays, and how many of the tokens that share
this key do. Keys are a logit's float32 bits in the order of integers, and a threshold is found four
bits at a time, by counting the tokens (top_k) or adding the masses (top_p) at or above sixteen
candidates in each pass. Masses are integers, a token's probability relative to the likeliest in
units of 2^-42: their sums are exact, so no order of summation can change a token.
"""

# Triton has no type information.
# mypy: disable-error-code="import-untyped, import-not-found, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

BLOCK = 4096
"""Tokens of a row that are looked at together."""
SEARCH_BLOCK = 512
"""The same while sixteen thresholds are tried at once."""
_UNITS = tl.constexpr(2.0**42)
"""Units of the likeliest token's mass: 2^20 tokens as likely do not overflow an int64."""


@triton.jit
def argmax_kernel(
    logits_ptr: tl.tensor,
    ids_ptr: tl.tensor,
    row_stride: tl.tensor,
    vocab_size: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    """The lowest id of row `program_id(0)` with the largest logit; NaN counts as the largest."""
    row = tl.program_id(0).to(tl.int64)
    logits_ptr += row * row_stride
    best = tl.full([BLOCK], float("-inf"), tl.float32)
    best_ids = tl.arange(0, BLOCK)
    for start in range(0, vocab_size, BLOCK):
        ids = start + tl.arange(0, BLOCK)
        logits = tl.load(logits_ptr + ids, mask=ids < vocab_size, other=float("-inf"))
        logits = logits.to(tl.float32)
        logits = tl.where(logits != logits, float("inf"), logits)
        best_ids = tl.where(logits > best, ids, best_ids)
        best = tl.maximum(best, logits)
    winners = tl.where(best == tl.max(best, axis=0), best_ids, vocab_size - 1)
    tl.store(ids_ptr + row, tl.min(winners, axis=0).to(tl.int64))


@triton.jit
def bitmask_kernel(
    logits_ptr: tl.tensor,
    rows_ptr: tl.tensor,
    bits_ptr: tl.tensor,
    row_stride: tl.tensor,
    vocab_size: tl.tensor,
    words: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    """Forbid tokens `[BLOCK * program_id(1), ...)` of the row of mask `program_id(0)`."""
    mask = tl.program_id(0).to(tl.int64)
    ids = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = ids < vocab_size
    word = tl.load(bits_ptr + mask * words + ids // 32, mask=inside, other=0)
    forbidden = ((word >> (ids % 32)) & 1) == 0
    logits = logits_ptr + tl.load(rows_ptr + mask) * row_stride + ids
    tl.store(logits, tl.full([BLOCK], float("-inf"), tl.float32), mask=inside & forbidden)


@triton.jit
def sample_kernel(
    logits_ptr: tl.tensor,
    ids_ptr: tl.tensor,
    parameters_ptr: tl.tensor,
    row_stride: tl.tensor,
    vocab_size: tl.tensor,
    BLOCK: tl.constexpr,
    SEARCH_BLOCK: tl.constexpr,
) -> None:
    """Draw the token of row `program_id(0)`; `parameters`: temperature, top_k, top_p, min_p, u."""
    row = tl.program_id(0).to(tl.int64)
    logits_ptr += row * row_stride
    parameters_ptr += row * 5
    temperature = tl.load(parameters_ptr).to(tl.float32)
    top_k = tl.load(parameters_ptr + 1).to(tl.int32)
    top_p = tl.load(parameters_ptr + 2)
    min_p = tl.load(parameters_ptr + 3).to(tl.float32)
    uniform = tl.load(parameters_ptr + 4)
    peak = tl.div_rn(_peak(logits_ptr, vocab_size, BLOCK), temperature)

    # Tokens above `least` stay, and the first `room` of those equal to it. At first all do.
    least = tl.zeros([], tl.uint32)
    room = tl.zeros([], tl.int64) + vocab_size
    if (top_k > 0) & (top_k < vocab_size):
        wanted = top_k.to(tl.int64)
        least = _threshold(logits_ptr, vocab_size, temperature, peak, wanted, False, SEARCH_BLOCK)
        count, _, _ = _above(logits_ptr, vocab_size, temperature, peak, least, BLOCK)
        room = wanted - count
    if top_p < 1.0:
        _, mass, unit = _above(logits_ptr, vocab_size, temperature, peak, least, BLOCK)
        kept = mass + room * unit
        wanted = tl.minimum(tl.ceil(top_p * kept.to(tl.float64)).to(tl.int64), kept)
        wanted = tl.maximum(wanted, 1)
        # Never below the threshold of top_k: what that keeps weighs as much as is wanted.
        least = _threshold(logits_ptr, vocab_size, temperature, peak, wanted, True, SEARCH_BLOCK)
        _, mass, unit = _above(logits_ptr, vocab_size, temperature, peak, least, BLOCK)
        unit = tl.maximum(unit, 1)
        room = (wanted - mass + unit - 1) // unit
    tl.store(
        ids_ptr + row,
        _draw(logits_ptr, vocab_size, temperature, peak, least, room, min_p, uniform, BLOCK),
    )


@triton.jit
def _load(logits_ptr: tl.tensor, ids: tl.tensor, vocab_size: tl.tensor) -> tl.tensor:
    return tl.load(logits_ptr + ids, mask=ids < vocab_size, other=float("-inf")).to(tl.float32)


@triton.jit
def _keys(logits: tl.tensor) -> tl.tensor:
    """uint32 in the order of the logits; every number's is above 0."""
    bits = tl.where(logits == 0.0, 0.0, logits).to(tl.uint32, bitcast=True)
    flip = tl.where(bits >= 0x80000000, 0xFFFFFFFF, 0x80000000).to(tl.uint32)
    return bits ^ flip


@triton.jit
def _relative(logits: tl.tensor, temperature: tl.tensor, peak: tl.tensor) -> tl.tensor:
    """Probabilities over that of the likeliest."""
    return tl.exp(tl.div_rn(logits, temperature) - peak)


@triton.jit
def _peak(logits_ptr: tl.tensor, vocab_size: tl.tensor, BLOCK: tl.constexpr) -> tl.tensor:
    best = tl.full([BLOCK], float("-inf"), tl.float32)
    for start in range(0, vocab_size, BLOCK):
        best = tl.maximum(best, _load(logits_ptr, start + tl.arange(0, BLOCK), vocab_size))
    return tl.max(best, axis=0)


@triton.jit
def _threshold(
    logits_ptr: tl.tensor,
    vocab_size: tl.tensor,
    temperature: tl.tensor,
    peak: tl.tensor,
    wanted: tl.tensor,
    BY_MASS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> tl.tensor:
    """The largest key at or above which there are `wanted` tokens, or units of mass."""
    found = tl.zeros([], tl.uint32)
    candidates = tl.arange(0, 16).to(tl.uint32)
    for digit in tl.static_range(8):
        tried = found + (candidates << (28 - 4 * digit))
        sums = tl.zeros([16, BLOCK], tl.int64 if BY_MASS else tl.int32)
        for start in range(0, vocab_size, BLOCK):
            ids = start + tl.arange(0, BLOCK)
            logits = _load(logits_ptr, ids, vocab_size)
            counted = (ids < vocab_size).to(tl.int32)
            if BY_MASS:
                counted = (_relative(logits, temperature, peak) * _UNITS).to(tl.int64)
            reached = _keys(logits)[None, :] >= tried[:, None]
            sums += tl.where(reached, counted[None, :], 0)
        enough = (tl.sum(sums, axis=1).to(tl.int64) >= wanted) & (candidates > 0)
        digits = tl.sum(enough.to(tl.int32), axis=0).to(tl.uint32)
        found += digits << (28 - 4 * digit)
    return found


@triton.jit
def _above(
    logits_ptr: tl.tensor,
    vocab_size: tl.tensor,
    temperature: tl.tensor,
    peak: tl.tensor,
    least: tl.tensor,
    BLOCK: tl.constexpr,
) -> tl.tuple:
    """Tokens above a key, their mass, and the mass of one token that has the key itself."""
    counts = tl.zeros([BLOCK], tl.int32)
    masses = tl.zeros([BLOCK], tl.int64)
    equals = tl.zeros([BLOCK], tl.int64)
    for start in range(0, vocab_size, BLOCK):
        logits = _load(logits_ptr, start + tl.arange(0, BLOCK), vocab_size)
        units = (_relative(logits, temperature, peak) * _UNITS).to(tl.int64)
        keys = _keys(logits)
        counts += (keys > least).to(tl.int32)
        masses += tl.where(keys > least, units, 0)
        equals = tl.maximum(equals, tl.where(keys == least, units, 0))
    return tl.sum(counts, axis=0).to(tl.int64), tl.sum(masses, axis=0), tl.max(equals, axis=0)


@triton.jit
def _stays(
    logits_ptr: tl.tensor,
    start: tl.tensor,
    vocab_size: tl.tensor,
    temperature: tl.tensor,
    peak: tl.tensor,
    least: tl.tensor,
    room: tl.tensor,
    min_p: tl.tensor,
    BLOCK: tl.constexpr,
) -> tl.tuple:
    """Masses of the tokens `[start, start + BLOCK)` that stay, and how many equal `least`."""
    logits = _load(logits_ptr, start + tl.arange(0, BLOCK), vocab_size)
    relative = _relative(logits, temperature, peak)
    keys = _keys(logits)
    equal = (keys == least).to(tl.int32)
    stays = (keys > least) | ((keys == least) & (tl.cumsum(equal, axis=0) <= room))
    units = tl.where(stays & (relative >= min_p), (relative * _UNITS).to(tl.int64), 0)
    return units, tl.sum(equal, axis=0)


@triton.jit
def _draw(
    logits_ptr: tl.tensor,
    vocab_size: tl.tensor,
    temperature: tl.tensor,
    peak: tl.tensor,
    least: tl.tensor,
    room: tl.tensor,
    min_p: tl.tensor,
    uniform: tl.tensor,
    BLOCK: tl.constexpr,
) -> tl.tensor:
    """The first id whose cumulative mass exceeds `uniform` of the mass that stays."""
    kept = tl.zeros([BLOCK], tl.int64)
    left = room
    for start in range(0, vocab_size, BLOCK):
        units, equal = _stays(
            logits_ptr, start, vocab_size, temperature, peak, least, left, min_p, BLOCK
        )
        kept += units
        left -= equal
    total = tl.sum(kept, axis=0)
    target = tl.minimum((uniform * total.to(tl.float64)).to(tl.int64), total - 1)
    before = tl.zeros([], tl.int64)
    chosen = tl.zeros([], tl.int64)
    left = room
    for start in range(0, vocab_size, BLOCK):
        units, equal = _stays(
            logits_ptr, start, vocab_size, temperature, peak, least, left, min_p, BLOCK
        )
        mass = tl.sum(units, axis=0)
        if (before <= target) & (target < before + mass):
            passed = (before + tl.cumsum(units, axis=0) <= target).to(tl.int32)
            chosen = tl.sum(passed, axis=0).to(tl.int64) + start
        before += mass
        left -= equal
    return chosen
