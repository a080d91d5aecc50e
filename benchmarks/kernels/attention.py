"""Attention over a paged cache as calls on one op table or another, with the work that it is."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.kernels.cases import F32, Case
from benchmarks.kernels.machine import Work
from benchmarks.kernels.shapes import Shapes
from benchmarks.kernels.timing import Call
from phloem.kernels import Ops
from phloem.mem_pool.kv import KVPool, KVShape

KV_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "int8": torch.int8}

Table = npt.NDArray[np.int32]


def attention_cases(shapes: Shapes) -> Iterator[Case]:
    """Planning, then decode and extend over each form of the cache."""
    widest = max(shapes.decodes, key=lambda decode: decode[0] * decode[1])
    yield _plan(shapes, *widest)
    for name, dtype in KV_DTYPES.items():
        for batch, context, shared in shapes.decodes:
            sharing = f", {shared} shared" if shared else ""
            title = f"decode {name} [{batch} x {context}{sharing}]"
            table = slots_of(batch, context, shared)
            yield _attend(title, shapes, dtype, table, 1)
        for new, context in shapes.extends:
            title = f"extend {name} [{new} at {context - new}]"
            yield _attend(title, shapes, dtype, slots_of(1, context, 0), new)


def slots_of(batch: int, context: int, shared: int) -> Table:
    """A row table `[batch, context]` of rows that have their first `shared` slots in common."""
    table = np.arange(1, batch * context + 1, dtype=np.int32).reshape(batch, context)
    table[1:, :shared] = table[0, :shared]
    return table


def filled_pool(num_slots: int, shape: KVShape) -> KVPool:
    """A pool of random numbers, the same in each layer."""
    pool = KVPool(num_slots, shape)
    slots = torch.arange(1, num_slots)
    k, v = torch.randn(2, num_slots - 1, shape.num_kv_heads, shape.head_dim)
    for layer in range(shape.num_layers):
        pool.store(layer, slots, k, v)
    return pool


def token_bytes(kv_heads: int, head_dim: int, dtype: torch.dtype) -> int:
    """What a layer keeps of a token; int8 has a float32 scale for each head of k and v."""
    scales = F32 if dtype == torch.int8 else 0
    return 2 * kv_heads * (head_dim * dtype.itemsize + scales)


def attention_work(s: Shapes, dtype: torch.dtype, table: Table, new: int) -> Work:
    """Of one layer: each slot is read once, and each visible one multiplied twice with each query.

    The last `new` tokens of each row of the table are its queries. What is kept in int8 is
    multiplied as int8.
    """
    batch, context = table.shape
    visible = batch * (new * context - new * (new - 1) // 2)
    queries = 2 * batch * new * s.heads * s.head_dim * F32
    read = len(np.unique(table)) * token_bytes(s.kv_heads, s.head_dim, dtype)
    operations = 4.0 * visible * s.heads * s.head_dim
    fma, dot = (0.0, operations) if dtype == torch.int8 else (operations, 0.0)
    return Work(read + queries, fma, dot)


def _attend(name: str, s: Shapes, dtype: torch.dtype, table: Table, new: int) -> Case:
    work = attention_work(s, dtype, table, new)
    layers = min(s.layers, max(1, -(-s.cold_bytes // int(work.bytes))))
    shape = KVShape(layers, s.kv_heads, s.head_dim, dtype)
    pool = filled_pool(int(table.max()) + 1, shape)
    q = torch.randn(len(table) * new, s.heads, s.head_dim)

    def make(ops: Ops) -> Call:
        plan = ops.plan_attention(table, *_lengths(table, new), s.attention)
        turns = itertools.cycle([pool.layer(layer) for layer in range(layers)])
        return lambda: plan.run(q, next(turns))

    return Case(name, work, make)


def _plan(s: Shapes, batch: int, context: int, shared: int) -> Case:
    table = slots_of(batch, context, shared)
    lengths = _lengths(table, 1)

    def make(ops: Ops) -> Call:
        return lambda: ops.plan_attention(table, *lengths, s.attention)

    return Case(f"plan_attention [{batch} x {context}]", Work(bytes=table.nbytes), make)


def _lengths(table: Table, new: int) -> tuple[Table, Table, Table]:
    """Rows, query lengths and lengths of a plan."""
    batch, context = table.shape
    return (
        np.arange(batch, dtype=np.int32),
        np.full(batch, new, np.int32),
        np.full(batch, context, np.int32),
    )
