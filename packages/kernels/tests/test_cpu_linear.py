"""Native linears against their formulas in float64, and their bits against themselves."""

from __future__ import annotations

import ctypes
from contextlib import ExitStack

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from phloem.kernels import get_ops
from phloem.kernels.base import BLOCK_BYTES, BlockWeight
from phloem.kernels.cpu_backend import library
from phloem.kernels.cpu_backend.linear import Linears
from phloem.kernels.cpu_backend.machine import INSTRUCTION_SETS
from phloem.kernels.cpu_backend.structs import Q4, Q8, Weight
from phloem.kernels.cpu_backend.team import Team
from phloem.kernels.torch_backend.blocks import (
    dequantize_blocks,
    quantize_blocks,
    round_activations,
    round_weight,
)
from phloem.kernels.torch_backend.rows import round_rows

FORMS = ("float", "int8", "int4")
FORMATS = tuple(BLOCK_BYTES)
ROWS = (1, 2, 3, 5, 7, 16, 17, 33)
STORE, ADD, SILU_MUL = 0, 1, 2
SHAPES = [(1, 1), (3, 31), (16, 32), (17, 33), (48, 100), (64, 576), (33, 64), (960, 96)]


class Machines:
    """Linears by instruction set and number of threads, made when they are asked for."""

    def __init__(self, stack):
        self._stack = stack
        self._made = {}

    def __call__(self, isa=None, threads=2):
        isa = isa or library.usable_instruction_sets()[0]
        if isa not in library.usable_instruction_sets():
            pytest.skip(f"this processor has no {isa}")
        if (isa, threads) not in self._made:
            loaded = library.load_library(isa)
            team = self._stack.enter_context(Team(loaded, threads))
            self._made[isa, threads] = Linears(loaded, team)
        return self._made[isa, threads]


@pytest.fixture(scope="module")
def machines():
    status = library.library_status()
    if not status.usable:
        pytest.skip(status.reason)
    library.load_library()
    with ExitStack() as stack:
        yield Machines(stack)


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def awkward_weight(n, k, seed=0):
    """Rows of zeros, of one number, of small and of one-sided numbers among ordinary ones."""
    weight = random(n, k, seed=seed)
    for row, factor in ((1, 0.0), (3, 1e-3), (4, 1e4)):
        weight[row : row + 1] *= factor
    weight[2:3] = 2.5
    weight[5:6] = weight[5:6].abs() + 1
    return weight


def random_blocks(format, n, k, seed=0):
    """Any bytes, with scales that are ordinary numbers."""
    made = np.random.default_rng(seed)
    blocks = made.integers(0, 256, (n, k // 32, BLOCK_BYTES[format]), np.uint8)
    scales = made.normal(size=(n, k // 32, 2)).astype("<f2").view(np.uint8)
    width = 4 if format == "q4_1" else 2
    blocks[..., :width] = scales[..., :width]
    return BlockWeight(format, blocks.reshape(n, -1))


def close_to_formula(found, x, weight, bias=None):
    """Whether `found` is x W^T + b but for float32 sums of numbers as large as a group has.

    (Where a weight has one scale it is exact but for three roundings, which is less.)
    """
    x, weight = x.double(), weight.double()
    expected = x @ weight.T
    sizes = torch.nn.functional.pad(weight.abs(), (0, -weight.shape[1] % 32)).unflatten(1, (-1, 32))
    sizes = sizes.amax(2, keepdim=True).expand_as(sizes).flatten(1)[:, : weight.shape[1]]
    bound = 2e-6 * (x.abs() @ sizes.T) + 1e-30
    if bias is not None:
        expected += bias
        bound += 1e-6 * bias.abs()
    return bool(((found - expected).abs() <= bound).all())


def run_native(linears, isa, then, x, linear, out):
    """`phloem_linear` as other native code has it: with what follows, into rows with a stride."""
    native = library.load_library(isa).function(
        *("phloem_linear", ctypes.c_void_p, ctypes.POINTER(Weight), ctypes.c_void_p, ctypes.c_int),
        *(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int),
    )
    scratch = torch.empty(len(x) * (linear.k + 32) * 4, dtype=torch.uint8)
    native(
        *(linears._team.handle, ctypes.byref(linear.struct), x.data_ptr(), len(x)),
        *(scratch.data_ptr(), out.data_ptr(), out.stride(0), then),
    )


@pytest.mark.parametrize("isa", INSTRUCTION_SETS)
@pytest.mark.parametrize("form", FORMS)
def test_a_linear_computes_its_formula_in_every_shape(machines, form, isa):
    linears = machines(isa)
    for n, k in SHAPES:
        weight, bias = awkward_weight(n, k), random(n, seed=1)
        with_bias, without = (
            linears.prepare(weight, bias, form),
            linears.prepare(weight, None, form),
        )
        meant = round_weight(weight, form)
        for rows in ROWS:
            x = random(rows, k, seed=rows)
            read = {"float": torch.clone, "int8": round_rows, "int4": round_activations}[form](x)
            assert close_to_formula(linears.run(x, with_bias), read, meant, bias), (n, k, rows)
            assert close_to_formula(linears.run(x, without), read, meant), (n, k, rows)


@pytest.mark.parametrize("isa", INSTRUCTION_SETS)
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("bits", [8, 16])
def test_a_linear_computes_in_the_blocks_of_a_file(machines, bits, format, isa):
    linears = machines(isa)
    for n, k in ((1, 32), (40, 576), (64, 64)):
        weight, x = random_blocks(format, n, k), random(13, k)
        prepared = linears.prepare(weight, input_bits=bits)
        assert prepared.kind == (Q8 if format == "q8_0" else Q4)
        found = linears.run(x, prepared)
        # With q4_1 the parts of a sum, d q and m, may be much larger than the sum.
        meant, read = dequantize_blocks(weight).double(), round_activations(x, bits).double()
        assert ((found - read @ meant.T).abs() <= 1e-4 * k**0.5).all()
        for rows in range(1, 13):
            assert torch.equal(linears.run(x[:rows], prepared), found[:rows])


@pytest.mark.parametrize("isa", INSTRUCTION_SETS)
@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize(
    ("format", "byte", "value"),
    [("q8_0", 0x80, -128), ("q8_0", 0x7F, 127), ("q4_1", 0xFF, 15), ("q4_0", 0x00, -8)],
)
def test_the_largest_bytes_meet_without_an_overflow(machines, format, byte, value, bits, isa):
    """Products of bytes are summed in 16 bits where that is enough for the largest of them."""
    n, k = 32, 96
    blocks = np.full((n, k // 32, BLOCK_BYTES[format]), byte, np.uint8)
    width = 4 if format == "q4_1" else 2
    blocks[..., :width] = np.array([1, 0], "<f2").view(np.uint8)[:width]
    linears = machines(isa)
    linear = linears.prepare(BlockWeight(format, blocks.reshape(n, -1)), input_bits=bits)
    signs = torch.tensor([1.0, -1.0]).repeat(k // 2)
    x = torch.stack([torch.ones(k), -torch.ones(k), signs]).repeat(4, 1) * (2 ** (bits - 1) - 1)
    assert torch.equal(linears.run(x, linear), (x.sum(1, keepdim=True) * value).expand(-1, n))


@pytest.mark.parametrize("form", FORMS)
def test_a_row_has_the_same_bits_alone_and_in_any_batch(machines, form):
    linears = machines()
    for n, k in ((50, 100), (96, 576)):
        prepared = linears.prepare(awkward_weight(n, k), random(n), form)
        x = random(400, k)
        alone = torch.cat([linears.run(row, prepared) for row in x.split(1)])
        for rows in (*range(2, 20), 33, 97, 193, 400):
            assert torch.equal(linears.run(x[:rows], prepared), alone[:rows])
        assert torch.equal(linears.run(x[7:30], prepared), alone[7:30])


@given(
    st.integers(1, 70),
    st.integers(1, 200),
    st.integers(1, 40),
    st.sampled_from(FORMS),
    st.integers(0, 1000),
)
@settings(max_examples=60, deadline=None)
def test_rows_outputs_and_threads_do_not_change_bits(machines, n, k, rows, form, seed):
    weight, x = random(n, k, seed=seed), random(rows, k, seed=seed + 1)
    whole = machines(threads=1).run(x, machines(threads=1).prepare(weight, None, form))
    linears = machines(threads=3)
    assert torch.equal(linears.run(x, linears.prepare(weight, None, form)), whole)
    row, output = seed % rows, seed % n
    part = linears.prepare(weight[output:], None, form)
    assert torch.equal(linears.run(x[row:], part), whole[row:, output:])


@pytest.mark.parametrize("form", FORMS)
def test_machines_with_fused_multiply_add_agree_in_every_bit(machines, form):
    weight, x, bias = awkward_weight(80, 300), random(19, 300), random(80)
    found = []
    for isa in ("avx512vnni", "avx2"):
        linears = machines(isa)
        found.append(linears.run(x, linears.prepare(weight, bias, form)))
    assert torch.equal(*found)


@pytest.mark.parametrize("isa", INSTRUCTION_SETS)
@pytest.mark.parametrize("form", FORMS)
def test_what_follows_a_linear_is_done_to_its_result_and_nothing_beside_it(machines, form, isa):
    linears = machines(isa)
    for n, k, rows in ((96, 70, 9), (32, 33, 1), (512, 64, 3)):
        prepared = linears.prepare(random(n, k), random(n, seed=1), form)
        x = random(rows, k)
        y = linears.run(x, prepared)
        before = random(rows, n + 5, seed=2)
        added = before.clone()
        run_native(linears, isa, ADD, x, prepared, added)
        assert torch.equal(added[:, :n], before[:, :n] + y)
        assert torch.equal(added[:, n:], before[:, n:])
        gated = before.clone()
        run_native(linears, isa, SILU_MUL, x, prepared, gated)
        gate, up = y.double().chunk(2, dim=1)
        expected = torch.nn.functional.silu(gate) * up
        torch.testing.assert_close(gated[:, : n // 2].double(), expected, rtol=2e-6, atol=1e-6)
        assert torch.equal(gated[:, n // 2 :], before[:, n // 2 :])
        stored = before.clone()
        run_native(linears, isa, STORE, x, prepared, stored)
        assert torch.equal(stored[:, :n], y)
        assert torch.equal(stored[:, n:], before[:, n:])


@pytest.mark.parametrize("n", [1, 15, 17, 47])
def test_outputs_that_fill_no_panel_are_added_to_and_leave_what_is_beside_them(machines, n):
    linears = machines()
    prepared, x = linears.prepare(random(n, 40)), random(7, 40)
    before = random(7, n + 1, seed=2)
    added = before.clone()
    run_native(linears, None, ADD, x, prepared, added)
    assert torch.equal(added[:, :n], before[:, :n] + linears.run(x, prepared))
    assert torch.equal(added[:, n:], before[:, n:])


@pytest.mark.parametrize("isa", INSTRUCTION_SETS)
@pytest.mark.parametrize("form", FORMS)
def test_a_power_of_two_moves_through_a_linear_exactly(machines, form, isa):
    linears = machines(isa)
    prepared, x = linears.prepare(random(40, 96), None, form), random(5, 96)
    y = linears.run(x, prepared)
    for factor in (2.0**60, 2.0**-60):
        assert torch.equal(linears.run(x * factor, prepared), y * factor)


@pytest.mark.parametrize("isa", INSTRUCTION_SETS)
@pytest.mark.parametrize("form", FORMS)
def test_rows_of_zeros_and_of_numbers_too_small_for_a_scale_give_the_bias(machines, form, isa):
    linears = machines(isa)
    bias = random(20)
    prepared = linears.prepare(random(20, 50), bias, form)
    x = torch.zeros(3, 50)
    x[1] = 1e-42
    assert torch.equal(linears.run(x, prepared), bias.expand(3, 20))


@pytest.mark.parametrize("isa", INSTRUCTION_SETS)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_number_that_is_not_finite_is_seen_in_its_row_and_no_other(machines, value, form, isa):
    linears = machines(isa)
    weight, x = random(20, 70), random(9, 70)
    prepared = linears.prepare(weight, None, form)
    expected = linears.run(x, prepared)
    for place in (0, 31, 32, 69):
        broken = x.clone()
        broken[4, place] = value
        found = linears.run(broken, prepared)
        assert not found[4].isfinite().any()
        others = [i for i in range(9) if i != 4]
        assert torch.equal(found[others], expected[others])
        broken = weight.clone()
        broken[5, place] = value
        found = linears.run(x, linears.prepare(broken, None, form))
        assert not found[:, 5].isfinite().any()
        others = [i for i in range(20) if i != 5]
        assert torch.equal(found[:, others], expected[:, others])


@pytest.mark.parametrize("isa", INSTRUCTION_SETS)
@pytest.mark.parametrize("form", FORMS)
def test_an_embedding_is_the_row_that_the_form_means(machines, form, isa):
    linears = machines(isa)
    ids = torch.tensor([0, 36, 5, 5, 16, 15])
    for k in (1, 31, 33, 64, 576):
        weight = awkward_weight(37, k)
        table = linears.prepare(weight, None, form)
        assert torch.equal(linears.embed(ids, table), round_weight(weight, form)[ids])
        assert linears.embed(ids[:0], table).shape == (0, k)


@pytest.mark.parametrize("isa", INSTRUCTION_SETS)
@pytest.mark.parametrize("format", FORMATS)
def test_an_embedding_is_what_the_blocks_of_a_file_mean(machines, format, isa):
    linears = machines(isa)
    weight, ids = random_blocks(format, 50, 96), torch.arange(50)
    assert torch.equal(linears.embed(ids, linears.prepare(weight)), dequantize_blocks(weight))


def test_scales_of_every_size_are_rounded_as_float16_is(machines):
    linears = machines("portable")
    # Each d of a block is one number: from too small over denormal and ties to infinite.
    d = torch.cat((torch.logspace(-12, 6, 4000, base=10), torch.arange(2040, 4200) / 2**20))
    d = torch.cat((d, (2048 + torch.arange(1, 64) / 2) * 2.0**-25))
    weight = d[:, None] * (torch.arange(32) % 16)
    found = linears.embed(torch.arange(len(d)), linears.prepare(weight, None, "int4"))
    with np.errstate(invalid="ignore"):  # an infinite d times a q of 0
        expected = dequantize_blocks(quantize_blocks(weight, "q4_1"))
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("format", FORMATS)
def test_an_order_picks_rows_of_a_weight_in_blocks(machines, format):
    linears = machines()
    weight = random_blocks(format, 40, 64)
    order = np.random.default_rng(1).permutation(40)[:35]
    picked = linears.prepare(weight, order=order)
    assert picked.shape == (35, 64)
    by_hand = linears.prepare(BlockWeight(format, weight.blocks[order]))
    assert torch.equal(picked.packed, by_hand.packed)


def test_views_and_other_dtypes_of_weights_are_packed_as_their_values(machines):
    linears = machines()
    weight, x = random(64, 24).bfloat16(), random(3, 48)[:, ::2]
    prepared = linears.prepare(weight.T.contiguous().T, random(64).bfloat16())
    expected = linears.prepare(weight.float(), random(64).bfloat16().float())
    assert torch.equal(linears.run(x, prepared), linears.run(x.contiguous(), expected))


def test_a_packed_weight_outlives_what_it_was_made_of(machines):
    linears = machines()
    weight, bias, x = random(20, 40), random(20), random(4, 40)
    prepared = linears.prepare(weight, bias)
    before = linears.run(x, prepared)
    weight.zero_()
    bias.zero_()
    assert torch.equal(linears.run(x, prepared), before)


def test_a_packed_weight_knows_its_size(machines):
    linears = machines()
    for form, expected in (("float", 32 * 64 * 4), ("int8", 32 * (64 + 4)), ("int4", 64 * 20)):
        prepared = linears.prepare(random(32, 64), None, form)
        assert prepared.shape == (prepared.n, prepared.k) == (32, 64)
        assert prepared.nbytes == expected
    assert linears.prepare(random(32, 64), random(32)).nbytes == 32 * 64 * 4 + 32 * 4


def test_no_rows_give_no_rows(machines):
    linears = machines()
    for form in FORMS:
        assert linears.run(
            torch.empty(0, 40), linears.prepare(random(8, 40), None, form)
        ).shape == (0, 8)


@pytest.mark.parametrize("x", [random(2, 41), random(2, 40).double(), random(40)])
def test_what_does_not_fit_a_linear_is_refused(machines, x):
    linears = machines()
    with pytest.raises(ValueError, match="does not fit a linear of 40 inputs"):
        linears.run(x, linears.prepare(random(8, 40)))


@pytest.mark.parametrize("ids", [[8], [-1], [0, 9]])
def test_rows_that_a_table_does_not_have_are_refused(machines, ids):
    linears = machines()
    with pytest.raises(IndexError, match="not all rows of a table of 8"):
        linears.embed(torch.tensor(ids), linears.prepare(random(8, 40)))


def test_weights_that_cannot_be_packed_are_refused(machines):
    linears = machines()
    with pytest.raises(ValueError, match="bias of the shape"):
        linears.prepare(random(8, 40), random(7))
    with pytest.raises(ValueError, match="'int2' of a weight is unknown"):
        linears.prepare(random(8, 40), None, "int2")
    with pytest.raises(ValueError, match="nothing to multiply"):
        linears.prepare(torch.empty(0, 40))
    with pytest.raises(ValueError, match="rows from 0 to 7"):
        linears.prepare(random_blocks("q8_0", 8, 32), order=np.array([0, 8]))
    with pytest.raises(ValueError, match="index floats"):
        linears.prepare(random(8, 32), order=np.arange(8))


@pytest.mark.parametrize("backend", ["cpu", "torch"])
def test_inputs_of_other_sizes_are_refused(backend):
    ops = get_ops(backend)
    weight = random_blocks("q8_0", 8, 32)
    with pytest.raises(ValueError, match="inputs of 2 bits"):
        ops.prepare_linear(weight, None, "float", 2)
    with pytest.raises(ValueError, match="inputs of 2 bits"):
        ops.tied_head(ops.prepare_embedding(weight), 2)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("rows", [1, 7, 33])
def test_inputs_of_16_bits_leave_little_of_what_those_of_8_lose(machines, format, rows):
    x, weight = random(rows, 96), quantize_blocks(random(48, 96, seed=1), format)
    meant = dequantize_blocks(weight).double().T
    exact = x.double() @ meant
    narrow, wide = (
        machines().run(x, machines().prepare(weight, input_bits=bits)) - exact for bits in (8, 16)
    )
    assert wide.abs().max() < narrow.abs().max() / 100
    linear = machines().prepare(weight).with_input_bits(16)
    together = machines().run(x, linear)
    assert torch.equal((together - exact), wide)
    read = round_activations(x, 16).double()
    torch.testing.assert_close(together.double(), read @ meant, rtol=1e-6, atol=1e-5)
    alone = torch.cat([machines(threads=1).run(row, linear) for row in x.split(1)])
    assert torch.equal(alone, together)
