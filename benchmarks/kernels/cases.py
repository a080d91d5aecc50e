"""Every op but attention as calls on one op table or another, with the work that it is."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from benchmarks.kernels.machine import Work
from benchmarks.kernels.shapes import Shapes
from benchmarks.kernels.timing import Call
from phloem.kernels import (
    KVTensors,
    LinearForm,
    Ops,
    PreparedLinear,
    SamplingParameters,
)
from phloem.kernels.base import BlockFormat
from phloem.kernels.cpu_backend.linear import CpuLinear
from phloem.kernels.torch_backend.blocks import quantize_blocks

F32 = 4
"""Bytes."""
_EPS = 1e-5
_TOP = 5
_FORMS: tuple[tuple[str, LinearForm, BlockFormat | None, float], ...] = (
    ("F32", "float", None, 4.0),
    ("I8", "int8", None, 1.0),
    ("Q8", "float", "q8_0", 34 / 32),
    ("Q4", "float", "q4_1", 20 / 32),
)
"""A kind of linear, the form that asks for it, its blocks, and the bytes of a weight in it."""


@dataclass(frozen=True, slots=True)
class Case:
    """One op on one shape."""

    name: str
    work: Work
    make: Callable[[Ops], Call]


def cases(shapes: Shapes) -> Iterator[Case]:
    """All of them, in the order of a step. What one holds can go when the next is taken."""
    for rows in shapes.rows:
        yield from _elementwise(shapes, rows)
    for (kind, form, blocks, weight_bytes), shape in itertools.product(_FORMS, shapes.linears):
        weights = _Weights(*shape, form, blocks, shapes.cold_bytes)
        for rows in shapes.rows:
            yield _linear(kind, weights, weight_bytes, rows)
    for rows in shapes.sampled:
        yield from _sampling(shapes, rows)


def _elementwise(s: Shapes, rows: int) -> Iterator[Case]:
    x, residual = torch.randn(2, rows, s.hidden)
    weight, gate_up = torch.randn(s.hidden), torch.randn(rows, 2 * s.intermediate)
    row_bytes = rows * s.hidden * F32
    yield Case(
        f"rms_norm [{rows}, {s.hidden}]",
        Work(bytes=2 * row_bytes),
        lambda ops: functools.partial(ops.rms_norm, x, weight, _EPS),
    )
    yield Case(
        f"add_rms_norm [{rows}, {s.hidden}]",
        Work(bytes=4 * row_bytes),
        lambda ops: functools.partial(ops.add_rms_norm, x, residual, weight, _EPS),
    )
    yield Case(
        f"silu_mul [{rows}, {2 * s.intermediate}]",
        Work(bytes=3 * rows * s.intermediate * F32),
        lambda ops: functools.partial(ops.silu_mul, gate_up),
    )
    yield _rotary(s, rows)


def _rotary(s: Shapes, rows: int) -> Case:
    q = torch.randn(rows, s.heads, s.head_dim)
    k, v = torch.randn(2, rows, s.kv_heads, s.head_dim)
    angles = torch.randn(rows, s.head_dim // 2)
    cos_sin = torch.cat((angles.cos(), angles.sin()), dim=-1)
    kv = KVTensors(*torch.zeros(2, rows + 1, s.kv_heads, s.head_dim))
    slots = torch.arange(1, rows + 1)
    # q and k are read and written, k and v stored, v and the angles read.
    heads = 2 * s.heads + 5 * s.kv_heads + 1
    return Case(
        f"rotary_store_kv [{rows}, {s.heads}+{s.kv_heads}, {s.head_dim}]",
        Work(bytes=rows * heads * s.head_dim * F32),
        lambda ops: functools.partial(ops.rotary_store_kv, q, k, v, cos_sin, kv, slots),
    )


class _Weights:
    """As many weights of one shape as caches cannot keep, for one op table and then another."""

    def __init__(
        self, n: int, k: int, form: LinearForm, blocks: BlockFormat | None, cold_bytes: int
    ) -> None:
        self.n, self.k = n, k
        self._form, self._blocks = form, blocks
        self._cold_bytes = cold_bytes
        self._made: dict[Ops, list[PreparedLinear]] = {}

    def of(self, ops: Ops) -> list[PreparedLinear]:
        """Prepared when an op table first asks."""
        if ops not in self._made:
            floats = torch.randn(self.n, self.k) / self.k**0.5
            weight = quantize_blocks(floats, self._blocks) if self._blocks else floats
            first = ops.prepare_linear(weight, None, self._form)
            # The reference keeps all forms as the floats that they mean.
            size = first.nbytes if isinstance(first, CpuLinear) else floats.nbytes
            more = range(1, max(1, -(-self._cold_bytes // size)))
            self._made[ops] = [
                first,
                *(ops.prepare_linear(weight, None, self._form) for _ in more),
            ]
        return self._made[ops]


def _linear(kind: str, weights: _Weights, weight_bytes: float, rows: int) -> Case:
    n, k = weights.n, weights.k
    x = torch.randn(rows, k)
    operations = 2.0 * rows * n * k
    fma, dot = (operations, 0.0) if kind == "F32" else (0.0, operations)

    def make(ops: Ops) -> Call:
        turns = itertools.cycle(weights.of(ops))
        return lambda: ops.linear(x, next(turns))

    return Case(
        f"linear {kind} {k}->{n} [{rows}]",
        Work(n * k * weight_bytes + rows * (n + k) * F32, fma, dot),
        make,
    )


def _sampling(s: Shapes, rows: int) -> Iterator[Case]:
    logits = torch.randn(rows, s.vocab) * 3
    ids = torch.arange(rows)
    work = Work(bytes=rows * s.vocab * F32)
    yield Case(
        f"argmax [{rows}, {s.vocab}]", work, lambda ops: functools.partial(ops.greedy, logits)
    )
    for name, top_k, top_p in (("top_k 50", 50, 1.0), ("top_p 0.9", 0, 0.9)):
        draw = _draw(logits, _parameters(rows, top_k, top_p))
        yield Case(f"{name} [{rows}, {s.vocab}]", work, draw)
    yield Case(
        f"logprobs [{rows}, {s.vocab}]",
        work,
        lambda ops: functools.partial(ops.token_logprobs, logits, ids, _TOP),
    )


def _draw(logits: Tensor, parameters: SamplingParameters) -> Callable[[Ops], Call]:
    return lambda ops: functools.partial(ops.sample, logits, parameters)


def _parameters(rows: int, top_k: int, top_p: float) -> SamplingParameters:
    return SamplingParameters(
        temperature=np.ones(rows, np.float32),
        top_k=np.full(rows, top_k, np.int32),
        top_p=np.full(rows, top_p, np.float32),
        min_p=np.zeros(rows, np.float32),
        uniforms=np.linspace(0.1, 0.9, rows),
    )
