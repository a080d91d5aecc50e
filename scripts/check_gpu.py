"""Check the kernels on a GPU against the torch reference, and time them against what it can do.

Every op of the `triton` backend, and of `flashinfer` where that is installed, at the shapes of two
models; a table of errors and times, and exit status 1 if a result is wrong. A bound is the time
that the op's bytes take at the bandwidth of a large copy, or its multiplications at the rate of a
large matrix product, whichever is longer; both are measured first. Small ops whose data stay in the
L2 cache may be faster than their bound, and are slower where the launch is most of their time.

    python scripts/check_gpu.py --json results.json
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from phloem.kernels import (
    AttentionPlan,
    AttentionSpec,
    Ops,
    RopeConfig,
    SamplingParameters,
    available_backends,
    cos_sin,
    get_ops,
    inverse_frequencies,
)
from phloem.mem_pool.kv.layers import KVLayer, Part, Place

PAGE = 16


@dataclass(frozen=True, slots=True)
class Model:
    """The shapes that matter to kernels."""

    name: str
    hidden: int
    intermediate: int
    heads: int
    groups: int
    dim: int
    vocab_size: int


@dataclass(frozen=True, slots=True)
class Load:
    """How much of a model's work one case is."""

    tokens: tuple[int, ...]
    """Rows of activations."""
    decodes: tuple[tuple[int, int], ...]
    """(rows, length) of decode steps."""
    extends: tuple[tuple[int, int, int], ...]
    """(rows, queries, length) of prefill chunks."""
    sampled: int
    """Rows that are sampled."""


@dataclass(frozen=True, slots=True)
class Case:
    """One op at one shape."""

    op: str
    shape: str
    run: Callable[[Ops], Tensor]
    """What an op table makes of it: of the one examined, and of the reference."""
    tolerance: float
    """Largest difference, relative to 1 or the value; of ids: the share that may differ."""
    moved_bytes: float
    flops: float = 0.0
    timed: Callable[[Ops], object] | None = None
    """The part of `run` that is timed, if not all."""


@dataclass(frozen=True, slots=True)
class Result:
    """What became of a case. Times are microseconds."""

    backend: str
    model: str
    op: str
    shape: str
    error: float
    tolerance: float
    ok: bool
    microseconds: float
    bound_microseconds: float


@dataclass(frozen=True, slots=True)
class Peaks:
    """What the device does at best, measured."""

    bytes_per_second: float
    flops_per_second: float


MODELS = (
    Model("smollm2-135m", 576, 1536, 9, 3, 64, 49152),
    Model("llama-8b", 4096, 14336, 32, 8, 128, 128256),
)
FILTERS = (
    ("all", -1, 1.0, 0.0),
    ("top_k", 50, 1.0, 0.0),
    ("top_p", -1, 0.9, 0.0),
    ("top_k, top_p, min_p", 200, 0.95, 0.02),
)
"""Name, top_k, top_p, min_p."""
LOAD = Load(
    tokens=(1, 64, 2048),
    decodes=((1, 300), (1, 8192), (16, 1100), (64, 4096)),
    extends=((1, 2048, 2048), (4, 512, 2048), (8, 4, 1000)),
    sampled=64,
)


def cases(ops: Ops, model: Model, load: Load, dtype: torch.dtype, device: str) -> Iterator[Case]:
    """Every op of a table beside the reference."""
    torch.manual_seed(0)
    for tokens in load.tokens:
        yield from _activations(model, tokens, dtype, device)
        for cache in (dtype, torch.int8):
            yield _rotary_store(model, tokens, dtype, cache, device)
    for cache in (dtype, torch.int8):
        for rows, length in load.decodes:
            yield _attention(model, [(1, length)] * rows, dtype, cache, device)
        for rows, queries, length in load.extends:
            yield _attention(model, [(queries, length)] * rows, dtype, cache, device)
    mixed = [(1, 700), (40, 300), (1, 20), (3, 520), (130, 130)]
    yield _attention(model, mixed, dtype, dtype, device)
    yield _alone(ops, model, mixed, dtype, device)
    yield from _choosing(model, load.sampled, device)


def _activations(model: Model, tokens: int, dtype: torch.dtype, device: str) -> Iterator[Case]:
    tolerance, row = _tolerance(dtype), tokens * dtype.itemsize
    x, residual = torch.randn(2, tokens, model.hidden, dtype=dtype, device=device)
    weight = torch.randn(model.hidden, dtype=dtype, device=device)
    gate_up = torch.randn(tokens, 2 * model.intermediate, dtype=dtype, device=device)
    shape = f"{tokens} x {model.hidden}"
    yield Case(
        "rms_norm",
        shape,
        lambda ops: ops.rms_norm(x, weight, 1e-5),
        tolerance,
        2 * row * model.hidden,
    )
    yield Case(
        "add_rms_norm",
        shape,
        lambda ops: torch.cat(ops.add_rms_norm(x, residual, weight, 1e-5)),
        tolerance,
        4 * row * model.hidden,
        timed=lambda ops: ops.add_rms_norm(x, residual, weight, 1e-5),
    )
    yield Case(
        "silu_mul",
        f"{tokens} x {model.intermediate}",
        lambda ops: ops.silu_mul(gate_up),
        tolerance,
        3 * row * model.intermediate,
    )


def _rotary_store(
    model: Model, tokens: int, dtype: torch.dtype, cache: torch.dtype, device: str
) -> Case:
    heads = model.heads, model.groups, model.groups
    qkv = torch.randn(tokens, sum(heads), model.dim, dtype=dtype, device=device)
    positions = torch.arange(tokens, device=device)
    angles = cos_sin(positions, inverse_frequencies(RopeConfig(), model.dim).to(device))
    slots = PAGE + torch.randperm(tokens, device=device)
    kv = _layer(model, tokens + 2 * PAGE, cache, device)

    def rotate(ops: Ops, x: Tensor) -> None:
        q, k, v = x.split(heads, dim=1)
        ops.rotary_store_kv(q, k, v, angles, kv, slots)

    def run(ops: Ops) -> Tensor:
        rotated = qkv.clone()
        rotate(ops, rotated)
        return torch.cat([rotated.flatten(), *(x.flatten() for x in kv.gather(slots, dtype))])

    written = 2 * tokens * model.groups * model.dim * cache.itemsize
    return Case(
        "rotary_store_kv",
        f"{tokens} tokens, {_short(cache)} cache",
        run,
        # Where a rounding of k differs, an int8 may be another.
        _tolerance(dtype) if cache != torch.int8 else 0.05,
        2 * qkv.numel() * dtype.itemsize + angles.numel() * 4 + written,
        timed=lambda ops: rotate(ops, qkv),
    )


class Rows:
    """Rows of (queries, length) with scattered pages, their cache and their queries."""

    def __init__(
        self,
        model: Model,
        rows: Sequence[tuple[int, int]],
        dtype: torch.dtype,
        cache: torch.dtype,
        device: str,
    ) -> None:
        self.queries, self.lengths = np.array(rows, np.int32).T
        pages = -(-self.lengths // PAGE)
        self.table = np.zeros((len(rows), int(pages.max()) * PAGE), np.int32)
        order = np.random.default_rng(0).permutation(np.arange(1, 1 + pages.sum()))
        for row, end, count in zip(self.table, np.cumsum(pages), pages):
            slots = order[end - count : end, None] * PAGE + np.arange(PAGE)
            row[: count * PAGE] = slots.reshape(-1)
        self.kv = _layer(model, int(1 + pages.sum()) * PAGE, cache, device)
        tokens = int(self.queries.sum())
        self.q = torch.randn(tokens, model.heads, model.dim, dtype=dtype, device=device)
        self.spec = AttentionSpec(model.heads, model.groups, model.dim, dtype, torch.device(device))

    def plan(self, ops: Ops, part: slice = slice(None)) -> AttentionPlan:
        """Plan all rows, or some."""
        index = np.arange(len(self.table), dtype=np.int32)[part]
        return ops.plan_attention(
            self.table, index, self.queries[part], self.lengths[part], self.spec
        )


def _attention(
    model: Model,
    rows: Sequence[tuple[int, int]],
    dtype: torch.dtype,
    cache: torch.dtype,
    device: str,
) -> Case:
    step = Rows(model, rows, dtype, cache, device)
    plans: dict[str, AttentionPlan] = {}

    def attend(ops: Ops) -> Tensor:
        if ops.name not in plans:
            plans[ops.name] = step.plan(ops)
        return plans[ops.name].run(step.q, step.kv)

    seen = sum(q * length - q * (q - 1) // 2 for q, length in rows)
    head_bytes = model.dim * cache.itemsize + (4 if cache == torch.int8 else 0)
    kind = "decode" if all(q == 1 for q, _ in rows) else "extend"
    alike = len(set(rows)) == 1
    shape = f"{len(rows)} x {rows[0][0]} of {rows[0][1]}" if alike else f"{len(rows)} mixed rows"
    return Case(
        f"attention {kind}",
        f"{shape}, {_short(cache)} cache",
        attend,
        _tolerance(dtype),
        int(step.lengths.sum()) * 2 * model.groups * head_bytes
        + 2 * step.q.numel() * dtype.itemsize,
        4.0 * seen * model.heads * model.dim,
    )


def _alone(
    examined: Ops, model: Model, rows: Sequence[tuple[int, int]], dtype: torch.dtype, device: str
) -> Case:
    """A row's bits alone and among others: they must be equal."""
    step = Rows(model, rows, dtype, dtype, device)

    def run(ops: Ops) -> Tensor:
        if ops is not examined:
            return step.plan(examined).run(step.q, step.kv)
        ends = np.cumsum(step.queries)
        parts = [
            step.plan(examined, slice(i, i + 1)).run(step.q[end - queries : end], step.kv)
            for i, (end, queries) in enumerate(zip(ends, step.queries))
        ]
        return torch.cat(parts)

    return Case("attention, each row alone", f"{len(rows)} mixed rows", run, 0.0, 0.0)


def _choosing(model: Model, count: int, device: str) -> Iterator[Case]:
    logits = 3 * torch.randn(count, model.vocab_size, device=device)
    size, shape = logits.numel() * 4, f"{count} x {model.vocab_size}"
    rng, rows = np.random.default_rng(0), np.arange(count)
    bits = rng.integers(-(2**31), 2**31, (count, -(-model.vocab_size // 32)), np.int32)

    def masked(ops: Ops) -> Tensor:
        copy = logits.clone()
        ops.apply_token_bitmask(copy, rows, bits)
        return copy.nan_to_num(neginf=-1e4)

    yield Case("greedy", shape, lambda ops: ops.greedy(logits), 0.0, size)
    scratch = logits.clone()
    yield Case(
        "apply_token_bitmask",
        shape,
        masked,
        0.0,
        0.5 * size,
        timed=lambda ops: ops.apply_token_bitmask(scratch, rows, bits),
    )
    for label, top_k, top_p, min_p in FILTERS:
        p = SamplingParameters(
            np.full(count, 0.8, np.float32),
            np.full(count, top_k, np.int32),
            np.full(count, top_p, np.float32),
            np.full(count, min_p, np.float32),
            rng.random(count),
        )
        # A row's number may lie within rounding of the border between two tokens.
        yield Case(f"sample, {label}", shape, functools.partial(_sample, logits, p), 0.02, size)


def _sample(logits: Tensor, p: SamplingParameters, ops: Ops) -> Tensor:
    return ops.sample(logits, p)


def _layer(model: Model, slots: int, cache: torch.dtype, device: str) -> KVLayer:
    place = Place(-(-slots // PAGE) * PAGE, PAGE, "token", torch.device(device))
    scales = torch.float32 if cache == torch.int8 else None
    parts = (Part(place, model.groups, model.dim, cache, scales) for _ in range(2))
    layer = KVLayer(*parts)
    for start in range(0, place.num_slots, 4096):
        part = torch.arange(start, min(start + 4096, place.num_slots), device=device)
        k, v = torch.randn(2, len(part), model.groups, model.dim, device=device)
        layer.store(part, k, v)
    return layer


def _tolerance(dtype: torch.dtype) -> float:
    return 1e-4 if dtype == torch.float32 else 0.03


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def examine(case: Case, ops: Ops, model: str, peaks: Peaks, seconds: float) -> Result:
    """Compare and time one case; time it for about `seconds`."""
    error = difference(case.run(ops), case.run(get_ops("torch")))
    bound = max(case.moved_bytes / peaks.bytes_per_second, case.flops / peaks.flops_per_second)
    timed = case.timed or case.run
    return Result(
        ops.name,
        model,
        case.op,
        case.shape,
        error,
        case.tolerance,
        error <= case.tolerance,
        1e6 * seconds_of(lambda: timed(ops), seconds),
        1e6 * bound,
    )


def difference(found: Tensor, expected: Tensor) -> float:
    """The largest, relative to 1 or the value; of integers the share; NaN counts as infinite."""
    if not found.is_floating_point():
        return float((found != expected).double().mean())
    found, expected = found.double(), expected.double()
    error = (found - expected).abs() / expected.abs().clamp(min=1.0)
    return float(error.nan_to_num(nan=float("inf"), posinf=float("inf")).max())


def seconds_of(work: Callable[[], object], budget: float) -> float:
    """The median of a call's time, among groups of calls that follow each other without a wait.

    Without a budget it is the time of one call.
    """
    once = _elapsed(work, 1)
    if not budget:
        return once
    once = _elapsed(work, 1)
    calls = max(1, min(100, int(budget / 5 / max(once, 1e-7))))
    return sorted(_elapsed(work, calls) / calls for _ in range(5))[2]


def _elapsed(work: Callable[[], object], calls: int) -> float:
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(calls):
        work()
    if cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - start


def measure_peaks(
    dtype: torch.dtype, device: str, copied: int = 1 << 30, side: int = 8192
) -> Peaks:
    """Bytes read and written by a copy, and multiplications and additions of a matrix product."""
    source = torch.empty(copied, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    a, b = torch.randn(2, side, side, dtype=dtype, device=device)
    return Peaks(
        2 * copied / seconds_of(lambda: target.copy_(source), 0.2),
        2 * side**3 / seconds_of(lambda: a @ b, 0.2),
    )


def lines(results: Sequence[Result]) -> Iterator[str]:
    """The table, for people."""
    yield f"{'backend':<11}{'model':<14}{'op':<27}{'shape':<34}{'error':>9}{'us':>10}{'bound':>10}"
    for r in results:
        yield (
            f"{r.backend:<11}{r.model:<14}{r.op:<27}{r.shape:<34}{r.error:>9.1e}"
            f"{r.microseconds:>10.1f}{r.bound_microseconds:>10.1f}{'' if r.ok else '  WRONG'}"
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """0: all is right; 1: something is wrong; 2: there is nothing to check on."""
    parser = argparse.ArgumentParser(description="Check and time the kernels on a GPU.")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write the results to a file, too")
    options = parser.parse_args(arguments)
    states = [b for b in available_backends() if b.name in ("triton", "flashinfer")]
    for state in states:
        print(f"{state.name}: {'usable' if state.usable else 'not usable'} ({state.reason})")
    if not torch.cuda.is_available():
        print(f"no GPU: torch {torch.__version__} sees none, so nothing was checked")
        return 2
    usable = [state.name for state in states if state.usable]
    if not usable:
        print("no backend is usable, for the reasons above: nothing was checked")
        return 2
    torch.backends.cuda.matmul.allow_tf32 = False
    results: list[Result] = []
    with torch.inference_mode():
        for dtype in (torch.bfloat16, torch.float32):
            peaks = measure_peaks(dtype, "cuda", 1 << 30, 8192)
            print(
                f"{_short(dtype)} on {torch.cuda.get_device_name()}: copies at "
                f"{peaks.bytes_per_second / 1e9:.0f} GB/s, products at "
                f"{peaks.flops_per_second / 1e12:.1f} TFLOP/s"
            )
            first = len(results)
            for name in usable if dtype == torch.bfloat16 else ["triton"]:
                ops = get_ops(name)
                results += [
                    examine(case, ops, model.name, peaks, 0.1)
                    for model in MODELS
                    for case in cases(ops, model, LOAD, dtype, "cuda")
                ]
            print(*lines(results[first:]), sep="\n")
    if options.json:
        found = {"device": torch.cuda.get_device_name(), "results": [asdict(r) for r in results]}
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    wrong = sum(not r.ok for r in results)
    print(f"{len(results)} checked, {wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
