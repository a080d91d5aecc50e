"""Paged attention on the device: one arithmetic, in a kernel for few queries and one for many.

A key/value head and up to `BLOCK_M` (query, head) pairs of one row are a program's work, so each
key is read once for all query heads that share it. Positions are cut into spans of `SPAN`, at fixed
absolute positions, and those into blocks of `BLOCK_N`: an online softmax (arXiv 1805.02867) runs
over the blocks of a span, and the spans' partial results are merged in order of position. The few
queries of a decode give each span to a program of its own and merge in a second kernel; the many of
a prefill chunk merge in registers. Neither the batch nor the number of programs changes the order.
"""

# Triton has no type information.
# mypy: disable-error-code="import-untyped, import-not-found, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

SPAN_LENGTH = 256
"""Positions whose partial result is made in one go; part of the arithmetic, not a tuning knob."""
SPAN = tl.constexpr(SPAN_LENGTH)


@triton.jit
def decode_kernel(
    q_ptr: tl.tensor,
    out_ptr: tl.tensor,
    partial_ptr: tl.tensor,
    stats_ptr: tl.tensor,
    work_ptr: tl.tensor,
    rows_ptr: tl.tensor,
    slots_ptr: tl.tensor,
    k_ptr: tl.tensor,
    k_scales_ptr: tl.tensor,
    v_ptr: tl.tensor,
    v_scales_ptr: tl.tensor,
    q_token: tl.tensor,
    q_head: tl.tensor,
    k_page: tl.tensor,
    k_slot: tl.tensor,
    k_head: tl.tensor,
    k_scales_page: tl.tensor,
    k_scales_slot: tl.tensor,
    k_scales_head: tl.tensor,
    v_page: tl.tensor,
    v_slot: tl.tensor,
    v_head: tl.tensor,
    v_scales_page: tl.tensor,
    v_scales_slot: tl.tensor,
    v_scales_head: tl.tensor,
    scale: tl.tensor,
    PAGE: tl.constexpr,
    SHARE: tl.constexpr,
    DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_V: tl.constexpr,
    QUANTIZED: tl.constexpr,
) -> None:
    """One span of one row, for all its queries: `work[program_id(0)]` is (row, span).

    A row of one span is finished here; others leave a partial result to `merge_kernel`.
    """
    work, group = tl.program_id(0), tl.program_id(1)
    row, span = tl.load(work_ptr + work * 2), tl.load(work_ptr + work * 2 + 1)
    length, queries, first_token, slot_start = _row(rows_ptr, row)
    pairs = tl.arange(0, BLOCK_M)
    query, head = pairs // SHARE, group * SHARE + pairs % SHARE
    real = (query < queries)[:, None]
    columns = tl.arange(0, BLOCK_D)[None, :]
    tokens = (first_token + query).to(tl.int64)
    q_rows = (tokens * q_token + head * q_head)[:, None]
    q = tl.load(q_ptr + q_rows + columns, mask=real & (columns < DIM), other=0.0)
    peak, mass, total = _attend_span(
        q,
        length - queries + query,
        span * SPAN,
        tl.minimum(span * SPAN + SPAN, length),
        slots_ptr + slot_start,
        k_ptr + group * k_head,
        k_scales_ptr + group * k_scales_head,
        v_ptr + group * v_head,
        v_scales_ptr + group * v_scales_head,
        k_page,
        k_slot,
        k_scales_page,
        k_scales_slot,
        v_page,
        v_slot,
        v_scales_page,
        v_scales_slot,
        scale,
        PAGE,
        DIM,
        VALUE_DIM,
        BLOCK_M,
        BLOCK_N,
        BLOCK_D,
        BLOCK_V,
        QUANTIZED,
    )
    columns = tl.arange(0, BLOCK_V)[None, :]
    if length <= SPAN:
        heads = tl.num_programs(1) * SHARE
        outs = out_ptr + ((tokens * heads + head) * VALUE_DIM)[:, None] + columns
        result = (total / mass[:, None]).to(out_ptr.dtype.element_ty)
        tl.store(outs, result, mask=real & (columns < VALUE_DIM))
    else:
        place = (work.to(tl.int64) * tl.num_programs(1) + group) * BLOCK_M + pairs
        tl.store(stats_ptr + place * 2, peak)
        tl.store(stats_ptr + place * 2 + 1, mass)
        tl.store(partial_ptr + (place * BLOCK_V)[:, None] + columns, total)


@triton.jit
def merge_kernel(
    out_ptr: tl.tensor,
    partial_ptr: tl.tensor,
    stats_ptr: tl.tensor,
    merges_ptr: tl.tensor,
    rows_ptr: tl.tensor,
    SHARE: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_V: tl.constexpr,
) -> None:
    """Merge the spans of one (query, head) of a row; `merges[program_id(0)]`: (row, first work)."""
    merge, group, pair = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    row, first_work = tl.load(merges_ptr + merge * 2), tl.load(merges_ptr + merge * 2 + 1)
    length, queries, first_token, _ = _row(rows_ptr, row)
    if pair // SHARE < queries:
        columns = tl.arange(0, BLOCK_V)
        peak, mass, total = _nothing(1, BLOCK_V)
        for span in range(0, (length + SPAN - 1) // SPAN):
            work = (first_work + span).to(tl.int64)
            place = (work * tl.num_programs(1) + group) * BLOCK_M + pair + tl.arange(0, 1)
            peak, mass, total = _merge(
                peak,
                mass,
                total,
                tl.load(stats_ptr + place * 2),
                tl.load(stats_ptr + place * 2 + 1),
                tl.load(partial_ptr + (place * BLOCK_V)[:, None] + columns[None, :]),
            )
        token = (first_token + pair // SHARE).to(tl.int64)
        head = token * tl.num_programs(1) * SHARE + group * SHARE + pair % SHARE
        outs = out_ptr + head * VALUE_DIM + columns[None, :]
        result = (total / mass[:, None]).to(out_ptr.dtype.element_ty)
        tl.store(outs, result, mask=columns[None, :] < VALUE_DIM)


@triton.jit
def extend_kernel(
    q_ptr: tl.tensor,
    out_ptr: tl.tensor,
    tiles_ptr: tl.tensor,
    rows_ptr: tl.tensor,
    slots_ptr: tl.tensor,
    k_ptr: tl.tensor,
    k_scales_ptr: tl.tensor,
    v_ptr: tl.tensor,
    v_scales_ptr: tl.tensor,
    q_token: tl.tensor,
    q_head: tl.tensor,
    k_page: tl.tensor,
    k_slot: tl.tensor,
    k_head: tl.tensor,
    k_scales_page: tl.tensor,
    k_scales_slot: tl.tensor,
    k_scales_head: tl.tensor,
    v_page: tl.tensor,
    v_slot: tl.tensor,
    v_head: tl.tensor,
    v_scales_page: tl.tensor,
    v_scales_slot: tl.tensor,
    v_scales_head: tl.tensor,
    scale: tl.tensor,
    PAGE: tl.constexpr,
    SHARE: tl.constexpr,
    DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_V: tl.constexpr,
    QUANTIZED: tl.constexpr,
) -> None:
    """A tile of a row's queries, over all positions it sees: `tiles[program_id(0)]`.

    A tile is (row, its first query), and has `BLOCK_M // SHARE` queries or what is left.
    """
    tile, group = tl.program_id(0), tl.program_id(1)
    row, first_query = tl.load(tiles_ptr + tile * 2), tl.load(tiles_ptr + tile * 2 + 1)
    length, queries, first_token, slot_start = _row(rows_ptr, row)
    last_query = tl.minimum(first_query + BLOCK_M // SHARE, queries)
    pairs = tl.arange(0, BLOCK_M)
    query, head = first_query + pairs // SHARE, group * SHARE + pairs % SHARE
    real = (query < last_query)[:, None]
    columns = tl.arange(0, BLOCK_D)[None, :]
    tokens = (first_token + query).to(tl.int64)
    q_rows = (tokens * q_token + head * q_head)[:, None]
    q = tl.load(q_ptr + q_rows + columns, mask=real & (columns < DIM), other=0.0)
    peak, mass, total = _nothing(BLOCK_M, BLOCK_V)
    stop = length - queries + last_query
    for start in range(0, stop, SPAN):
        span_peak, span_mass, span_total = _attend_span(
            q,
            length - queries + query,
            start,
            tl.minimum(start + SPAN, stop),
            slots_ptr + slot_start,
            k_ptr + group * k_head,
            k_scales_ptr + group * k_scales_head,
            v_ptr + group * v_head,
            v_scales_ptr + group * v_scales_head,
            k_page,
            k_slot,
            k_scales_page,
            k_scales_slot,
            v_page,
            v_slot,
            v_scales_page,
            v_scales_slot,
            scale,
            PAGE,
            DIM,
            VALUE_DIM,
            BLOCK_M,
            BLOCK_N,
            BLOCK_D,
            BLOCK_V,
            QUANTIZED,
        )
        peak, mass, total = _merge(peak, mass, total, span_peak, span_mass, span_total)
    columns = tl.arange(0, BLOCK_V)[None, :]
    heads = tl.num_programs(1) * SHARE
    outs = out_ptr + ((tokens * heads + head) * VALUE_DIM)[:, None] + columns
    result = (total / mass[:, None]).to(out_ptr.dtype.element_ty)
    tl.store(outs, result, mask=real & (columns < VALUE_DIM))


@triton.jit
def _row(rows_ptr: tl.tensor, row: tl.tensor) -> tl.tuple:
    """A row's length, its queries, its first token and where its slots start."""
    row_ptr = rows_ptr + row * 4
    return tl.load(row_ptr), tl.load(row_ptr + 1), tl.load(row_ptr + 2), tl.load(row_ptr + 3)


@triton.jit
def _attend_span(
    q: tl.tensor,
    positions: tl.tensor,
    start: tl.tensor,
    stop: tl.tensor,
    slots_ptr: tl.tensor,
    k_ptr: tl.tensor,
    k_scales_ptr: tl.tensor,
    v_ptr: tl.tensor,
    v_scales_ptr: tl.tensor,
    k_page: tl.tensor,
    k_slot: tl.tensor,
    k_scales_page: tl.tensor,
    k_scales_slot: tl.tensor,
    v_page: tl.tensor,
    v_slot: tl.tensor,
    v_scales_page: tl.tensor,
    v_scales_slot: tl.tensor,
    scale: tl.tensor,
    PAGE: tl.constexpr,
    DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_V: tl.constexpr,
    QUANTIZED: tl.constexpr,
) -> tl.tuple:
    """Attend with `q` `[BLOCK_M, BLOCK_D]` at `positions` to `[start, stop)`, `start` a span's.

    `scale` includes log2(e). Returns the largest score, the sum of exp2(score - largest), and that
    sum weighted by values. A pair that sees nothing here has -inf, 0 and 0.
    """
    peak, mass, total = _nothing(BLOCK_M, BLOCK_V)
    for begin in range(start, stop, BLOCK_N):
        seen = begin + tl.arange(0, BLOCK_N)
        inside = seen < stop
        slots = tl.load(slots_ptr + seen, mask=inside, other=0)
        page, place = (slots // PAGE).to(tl.int64), (slots % PAGE).to(tl.int64)
        k = _load(k_ptr, page * k_page + place * k_slot, inside, DIM, BLOCK_D)
        v = _load(v_ptr, page * v_page + place * v_slot, inside, VALUE_DIM, BLOCK_V)
        if QUANTIZED:
            places = page * k_scales_page + place * k_scales_slot
            k_scale = tl.load(k_scales_ptr + places, mask=inside, other=0.0)
            k = k.to(tl.float32) * k_scale[:, None]
            places = page * v_scales_page + place * v_scales_slot
            v_scale = tl.load(v_scales_ptr + places, mask=inside, other=0.0)
            v = v.to(tl.float32) * v_scale[:, None]
        k, v = k.to(q.dtype), v.to(q.dtype)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        visible = inside[None, :] & (seen[None, :] <= positions[:, None])
        scores = tl.where(visible, scores, float("-inf"))
        new_peak = tl.maximum(peak, tl.max(scores, axis=1))
        # Where nothing was seen yet, -inf - -inf would be NaN.
        shift = tl.where(new_peak == float("-inf"), 0.0, new_peak)
        weights = tl.exp2(scores - shift[:, None])
        decay = tl.exp2(peak - shift)
        mass = mass * decay + tl.sum(weights, axis=1)
        total = tl.dot(weights.to(v.dtype), v, total * decay[:, None], input_precision="ieee")
        peak = new_peak
    return peak, mass, total


@triton.jit
def _load(
    ptr: tl.tensor, places: tl.tensor, inside: tl.tensor, WIDTH: tl.constexpr, BLOCK: tl.constexpr
) -> tl.tensor:
    columns = tl.arange(0, BLOCK)[None, :]
    mask = inside[:, None] & (columns < WIDTH)
    return tl.load(ptr + places[:, None] + columns, mask=mask, other=0)


@triton.jit
def _nothing(BLOCK_M: tl.constexpr, BLOCK_V: tl.constexpr) -> tl.tuple:
    """The partial result of no positions."""
    peak = tl.full([BLOCK_M], float("-inf"), tl.float32)
    return peak, tl.zeros([BLOCK_M], tl.float32), tl.zeros([BLOCK_M, BLOCK_V], tl.float32)


@triton.jit
def _merge(
    peak: tl.tensor,
    mass: tl.tensor,
    total: tl.tensor,
    next_peak: tl.tensor,
    next_mass: tl.tensor,
    next_total: tl.tensor,
) -> tl.tuple:
    """Join the partial results of earlier and of later positions; joined to nothing, one stays."""
    new_peak = tl.maximum(peak, next_peak)
    shift = tl.where(new_peak == float("-inf"), 0.0, new_peak)
    before, after = tl.exp2(peak - shift), tl.exp2(next_peak - shift)
    new_mass = tl.fma(mass, before, next_mass * after)
    new_total = tl.fma(
        total,
        tl.broadcast_to(before[:, None], total.shape),
        next_total * after[:, None],
    )
    return new_peak, new_mass, new_total
