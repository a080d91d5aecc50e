"""Native norms, SiLU and rotary embedding against the torch reference, and what all native ops
refuse before a pointer leaves Python."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from phloem.kernels import AttentionSpec, KVTensors, RopeConfig, cos_sin, inverse_frequencies
from phloem.kernels.cpu_backend import library
from phloem.kernels.cpu_backend.attention import AttentionPlanner
from phloem.kernels.cpu_backend.elementwise import Elementwise
from phloem.kernels.cpu_backend.linear import Linears
from phloem.kernels.cpu_backend.machine import INSTRUCTION_SETS
from phloem.kernels.cpu_backend.team import Team
from phloem.kernels.torch_backend.ops import TorchOps

REFERENCE = TorchOps()
SHAPES = [(0, 16), (1, 1), (1, 17), (3, 15), (5, 64), (2, 577)]
"""Rows and width: none, one, and around a vector."""


@pytest.fixture(scope="module")
def loaded():
    status = library.library_status()
    if not status.usable:
        pytest.skip(status.reason)
    return library.load_library()


@pytest.fixture(scope="module")
def team(loaded):
    with Team(loaded, 2) as team:
        yield team


@pytest.fixture(scope="module")
def ops(loaded, team):
    return Elementwise(loaded, team)


@pytest.fixture(scope="module")
def linears(loaded, team):
    return Linears(loaded, team)


def random(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def strided(x):
    """The same values, with other values between them."""
    apart = torch.full((*x.shape, 2), 99).to(x.dtype)
    apart[..., 0] = x
    return apart[..., 0]


class Rotary:
    """Arguments of `rotary_store_kv`, by name, to be changed one at a time."""

    def __init__(self, tokens=3, heads=4, groups=2, dim=8, value_dim=None, dtype=torch.float32):
        value_dim = value_dim or dim
        positions = torch.arange(tokens) * 31
        self.q = random(tokens, heads, dim, seed=1)
        self.k = random(tokens, groups, dim, seed=2)
        self.v = random(tokens, groups, value_dim, seed=3)
        self.cos_sin = cos_sin(positions, inverse_frequencies(RopeConfig(), dim))
        self.kv = KVTensors(
            torch.zeros(tokens + 9, groups, dim, dtype=dtype),
            torch.zeros(tokens + 9, groups, value_dim, dtype=dtype),
        )
        self.slots = torch.arange(tokens).flip(0) * 2 % (tokens + 9)

    def __call__(self, ops, **changed):
        """Runs the op on copies; gives back q, k and what the layer holds then."""
        arguments = {
            name: value if name in changed or name == "kv" else value.clone()
            for name, value in {**vars(self), **changed}.items()
        }
        kv = KVTensors(arguments["kv"].k.clone(), arguments["kv"].v.clone())
        ops.rotary_store_kv(**{**arguments, "kv": kv})
        return arguments["q"], arguments["k"], kv.k, kv.v


@pytest.mark.parametrize(("rows", "k"), SHAPES, ids=str)
@pytest.mark.parametrize("change", [lambda x: x, strided], ids=["dense", "strided"])
def test_norms_are_those_of_the_reference(ops, rows, k, change):
    x, residual, weight = random(rows, k), random(rows, k, seed=1), random(k, seed=2)
    torch.testing.assert_close(
        ops.rms_norm(change(x), change(weight), 1e-5), REFERENCE.rms_norm(x, weight, 1e-5)
    )
    found = ops.add_rms_norm(change(x), change(residual), change(weight), 1e-5)
    torch.testing.assert_close(found, REFERENCE.add_rms_norm(x, residual, weight, 1e-5))


@pytest.mark.parametrize(("rows", "k"), SHAPES, ids=str)
@pytest.mark.parametrize("change", [lambda x: x, strided], ids=["dense", "strided"])
def test_silu_mul_is_that_of_the_reference(ops, rows, k, change):
    gate_up = 4 * random(rows, 2 * k)
    torch.testing.assert_close(ops.silu_mul(change(gate_up)), REFERENCE.silu_mul(gate_up))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "shape", [(1, 1, 1, 2), (3, 4, 2, 8), (2, 3, 3, 34), (5, 6, 2, 66), (4, 2, 1, 64)], ids=str
)
def test_rotary_store_kv_is_that_of_the_reference(ops, shape, dtype):
    case = Rotary(*shape, dtype=dtype)
    # A float32 rounding apart may be a whole bfloat16 rounding apart.
    tolerance = {} if dtype == torch.bfloat16 else {"rtol": 1e-5, "atol": 1e-5}
    for found, expected in zip(case(ops), case(REFERENCE)):
        torch.testing.assert_close(found, expected, **tolerance)


@pytest.mark.parametrize("name", ["q", "k", "v", "cos_sin", "slots"])
def test_rotary_store_kv_takes_strided_tensors(ops, name):
    case = Rotary()
    found = case(ops, **{name: strided(getattr(case, name))})
    for part, expected in zip(found, case(REFERENCE)):
        torch.testing.assert_close(part, expected)


def test_values_of_another_width_are_stored_by_the_layer(ops):
    case = Rotary(value_dim=5)
    for found, expected in zip(case(ops), case(REFERENCE)):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_another_dtype_than_float32_is_refused(ops, dtype):
    x, weight = random(2, 8), random(8)
    other = x.to(dtype)
    calls = (
        lambda: ops.rms_norm(other, weight, 1e-5),
        lambda: ops.rms_norm(x, weight.to(dtype), 1e-5),
        lambda: ops.add_rms_norm(other, x, weight, 1e-5),
        lambda: ops.add_rms_norm(x, other, weight, 1e-5),
        lambda: ops.add_rms_norm(x, x, weight.to(dtype), 1e-5),
        lambda: ops.silu_mul(other),
    )
    for call in calls:
        with pytest.raises(ValueError, match=f"is {dtype} .*cpu backend.*float32"):
            call()


@pytest.mark.parametrize("name", ["q", "k", "v", "cos_sin"])
def test_rotary_store_kv_refuses_another_dtype_than_float32(ops, name):
    case = Rotary()
    with pytest.raises(ValueError, match=r"torch\.bfloat16.*cpu backend.*float32"):
        case(ops, **{name: getattr(case, name).bfloat16()})


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("q", (4, 4, 8)),
        ("q", (3, 4, 10)),
        ("q", (3, 32)),
        ("k", (2, 2, 8)),
        ("k", (3, 2, 6)),
        ("k", (3, 16)),
        ("v", (2, 2, 8)),
        ("v", (3, 1, 8)),
        ("v", (3, 16)),
        ("cos_sin", (2, 8)),
        ("cos_sin", (3, 4)),
        ("cos_sin", (24,)),
    ],
    ids=str,
)
def test_rotary_store_kv_refuses_shapes_that_do_not_fit(ops, name, wrong):
    with pytest.raises(ValueError, match=r"not fit .* give "):
        Rotary()(ops, **{name: random(*wrong)})


def test_rotary_store_kv_refuses_an_odd_head(ops):
    with pytest.raises(ValueError, match="with an even D"):
        Rotary()(ops, q=random(3, 4, 7), k=random(3, 2, 7), v=random(3, 2, 7))


@pytest.mark.parametrize(
    "slots", [torch.arange(3, dtype=torch.int32), torch.arange(2), torch.arange(3)[None]], ids=str
)
def test_rotary_store_kv_refuses_slots_that_are_not_one_int64_per_token(ops, slots):
    with pytest.raises(ValueError, match=r"slots is torch\.int.*give torch\.int64 \(3,\)"):
        Rotary()(ops, slots=slots)


@pytest.mark.parametrize(("groups", "dim"), [(1, 8), (2, 6), (3, 8)])
def test_rotary_store_kv_refuses_a_layer_of_other_heads(ops, groups, dim):
    with pytest.raises(ValueError, match="does not fit 2 heads of 8 and 8 elements"):
        Rotary()(ops, kv=KVTensors(*torch.zeros(2, 12, groups, dim)))


def test_norms_refuse_shapes_that_do_not_fit(ops):
    x, weight = random(2, 8), random(8)
    for length in (7, 9):
        with pytest.raises(ValueError, match=rf"weight .* \({length},\).*give .* \(8,\)"):
            ops.rms_norm(x, random(length), 1e-5)
        with pytest.raises(ValueError, match=rf"weight .* \({length},\).*give .* \(8,\)"):
            ops.add_rms_norm(x, x, random(length), 1e-5)
    with pytest.raises(ValueError, match=r"residual .* \(1, 8\).*give .* \(2, 8\)"):
        ops.add_rms_norm(x, random(1, 8), weight, 1e-5)
    with pytest.raises(ValueError, match=r"x is .* \(8,\).*give float32 \[T, width\]"):
        ops.rms_norm(random(8), weight, 1e-5)


def test_silu_mul_refuses_halves_that_differ(ops):
    with pytest.raises(ValueError, match="gate_up has 9 columns"):
        ops.silu_mul(random(2, 9))
    with pytest.raises(ValueError, match=r"gate_up is .* \(8,\)"):
        ops.silu_mul(random(8))


@pytest.mark.parametrize("shape", [(), (8,), (2, 2, 8)], ids=str)
def test_a_weight_that_is_no_matrix_is_refused(linears, shape):
    with pytest.raises(ValueError, match=r"is no matrix: give \[out, in\]"):
        linears.prepare(random(*shape))


@pytest.mark.parametrize("shape", [(), (2, 2)], ids=str)
def test_ids_that_are_no_list_are_refused(linears, shape):
    table = linears.prepare(random(4, 8))
    with pytest.raises(ValueError, match=r"are no list: give \[T\]"):
        linears.embed(torch.zeros(shape, dtype=torch.int64), table)


@pytest.fixture
def plan(loaded, team):
    """Of 3 tokens in two rows: 4 query heads of 8 elements, which share 2."""
    spec = AttentionSpec(4, 2, 8, torch.float32, torch.device("cpu"))
    table = np.arange(1, 11, dtype=np.int32).reshape(2, 5)
    lengths = np.array([2, 1], np.int32), np.array([2, 5], np.int32)
    return AttentionPlanner(loaded, team).plan(table, np.arange(2, dtype=np.int32), *lengths, spec)


@pytest.mark.parametrize(
    "shape", [(2, 4, 8), (4, 4, 8), (3, 2, 8), (3, 8, 8), (3, 4, 6), (3, 4, 16), (3, 32)], ids=str
)
def test_a_plan_refuses_queries_that_it_is_not_for(plan, shape):
    with pytest.raises(ValueError, match=r"plan for 3 tokens: give \(3, 4, 8\)"):
        plan.run(random(*shape), KVTensors(*torch.zeros(2, 11, 2, 8)))


@pytest.mark.parametrize(("groups", "dim"), [(1, 8), (2, 6), (4, 8)])
def test_a_plan_refuses_a_layer_of_other_heads(plan, groups, dim):
    with pytest.raises(ValueError, match="does not fit 2 heads of 8 and 8 elements"):
        plan.run(random(3, 4, 8), KVTensors(*torch.zeros(2, 11, groups, dim)))


def test_results_are_float32_whatever_torch_makes_by_default(plan, linears):
    x, weight = random(3, 8), random(4, 8)
    kv = KVTensors(random(11, 2, 8), random(11, 2, 8, seed=1))
    q = random(3, 4, 8)

    def results():
        linear = linears.prepare(weight)
        return linears.run(x, linear), linears.embed(torch.arange(3), linear), plan.run(q, kv)

    expected = results()
    torch.set_default_dtype(torch.bfloat16)
    try:
        found = results()
    finally:
        torch.set_default_dtype(torch.float32)
    for one, other in zip(found, expected):
        assert one.dtype == torch.float32
        assert torch.equal(one, other)


@pytest.mark.parametrize("isa", INSTRUCTION_SETS)
def test_hadamard_is_that_of_torch_in_every_block(isa):
    if not library.library_status().usable or isa not in library.usable_instruction_sets():
        pytest.skip(f"this machine cannot run {isa}")
    loaded = library.load_library(isa)
    with Team(loaded, 2) as team:
        ops = Elementwise(loaded, team)
        for rows, width, block in ((3, 1, 1), (1, 6, 2), (5, 20, 4), (40, 576, 64), (2, 256, 256)):
            x = random(rows, width)
            kept = x.clone()
            found = ops.hadamard(x, block)
            torch.testing.assert_close(found, REFERENCE.hadamard(x, block))
            torch.testing.assert_close(ops.hadamard(found, block), x)
            assert torch.equal(x, kept)


@pytest.mark.parametrize("block", [0, -2, 3, 24, 64])
def test_a_hadamard_block_that_does_not_fit_is_refused(ops, block):
    with pytest.raises(ValueError, match="48 elements cannot be transformed in blocks of"):
        ops.hadamard(random(2, 48), block)
