"""Linears over quantized weights, and the blocks themselves."""

import numpy as np
import pytest
import torch

from phloem.kernels import BlockWeight, get_ops
from phloem.kernels.base import BLOCK_BYTES
from phloem.kernels.torch_backend.blocks import (
    convert_blocks,
    dequantize_blocks,
    quantize_blocks,
    round_activations,
    round_weight,
)
from phloem.kernels.torch_backend.rows import round_rows

ops = get_ops()
FORMATS = tuple(BLOCK_BYTES)
LEVELS = {"q4_0": 8, "q4_1": 15, "q8_0": 127}


def weight_of(rows, inputs, seed=0):
    made = torch.Generator().manual_seed(seed)
    weight = torch.randn(rows, inputs, generator=made)
    weight[0, :32] = 0.0
    weight[1, :32] = 2.5
    weight[2] *= 1e-3
    return weight


@pytest.mark.parametrize("format", FORMATS)
def test_blocks_are_those_of_the_gguf_package(format):
    gguf = pytest.importorskip("gguf")
    from gguf.quants import dequantize, quantize

    kind = gguf.GGMLQuantizationType[format.upper()]
    weight = weight_of(40, 96)
    # Ties of the rounding, which each format resolves in its own way.
    weight[3] = torch.arange(-48, 48) / 2
    with np.errstate(invalid="ignore"):
        expected = quantize(weight.numpy(), kind)
    made = quantize_blocks(weight, format)
    np.testing.assert_array_equal(made.blocks, expected)
    np.testing.assert_array_equal(dequantize_blocks(made), dequantize(expected, kind))


@pytest.mark.parametrize("format", FORMATS)
def test_random_bytes_mean_what_they_mean_to_the_gguf_package(format):
    gguf = pytest.importorskip("gguf")
    from gguf.quants import dequantize

    blocks = np.random.default_rng(0).integers(0, 256, (50, 3, BLOCK_BYTES[format]), np.uint8)
    # Scales that are finite: d, and where there is one m, are the first float16 numbers.
    scales = np.random.default_rng(1).normal(size=(50, 3, 2)).astype("<f2").view(np.uint8)
    num_scale_bytes = 4 if format == "q4_1" else 2
    blocks[..., :num_scale_bytes] = scales[..., :num_scale_bytes]
    blocks = blocks.reshape(50, -1)
    expected = dequantize(blocks, gguf.GGMLQuantizationType[format.upper()])
    np.testing.assert_array_equal(dequantize_blocks(BlockWeight(format, blocks)), expected)


@pytest.mark.parametrize("format", FORMATS)
def test_rounding_is_off_by_at_most_half_a_step_of_the_block(format):
    weight = weight_of(64, 128)
    blocks = weight.unflatten(1, (-1, 32))
    span = blocks.amax(-1) - blocks.amin(-1) if format == "q4_1" else blocks.abs().amax(-1)
    # q4_0 has one level less above zero than below: the other end may be a whole step off.
    steps = 1.0 if format == "q4_0" else 0.5
    bound = (span * steps / LEVELS[format] + 2e-3 * blocks.abs().amax(-1))[..., None]
    error = (dequantize_blocks(quantize_blocks(weight, format)) - weight).unflatten(1, (-1, 32))
    assert (error.abs() <= bound).all()


def test_a_large_weight_is_rounded_as_its_parts_are():
    weight = weight_of(5000, 32)
    whole = quantize_blocks(weight, "q8_0")
    np.testing.assert_array_equal(
        whole.blocks[4990:], quantize_blocks(weight[4990:], "q8_0").blocks
    )
    assert torch.equal(
        dequantize_blocks(whole)[4000:4200],
        dequantize_blocks(BlockWeight("q8_0", whole.blocks[4000:4200])),
    )


@pytest.mark.parametrize("format", ["q4_1", "q8_0"])
def test_q4_0_becomes_another_format_without_loss(format):
    weight = quantize_blocks(weight_of(16, 64), "q4_0")
    other = convert_blocks(weight, format)
    assert other.format == format
    assert torch.equal(dequantize_blocks(other), dequantize_blocks(weight))


def test_other_conversions_round_anew_and_none_is_needed_within_a_format():
    weight = quantize_blocks(weight_of(16, 64), "q4_1")
    assert convert_blocks(weight, "q4_1") is weight
    expected = quantize_blocks(dequantize_blocks(weight), "q8_0")
    np.testing.assert_array_equal(convert_blocks(weight, "q8_0").blocks, expected.blocks)


def test_a_number_that_is_not_finite_stays_visible():
    weight = torch.ones(2, 32)
    weight[1, 5] = float("nan")
    for format in FORMATS:
        values = dequantize_blocks(quantize_blocks(weight, format))
        assert values[0].isfinite().all()
        assert not values[1].isfinite().any()


@pytest.mark.parametrize(
    ("shape", "format", "says"),
    [((2, 40), "q8_0", "40 inputs has no whole blocks"), ((2, 32), "q5_0", "'q5_0' is unknown")],
)
def test_what_has_no_blocks_is_refused(shape, format, says):
    with pytest.raises(ValueError, match=says):
        quantize_blocks(torch.zeros(shape), format)


def test_activations_are_rounded_to_int8_in_groups_of_32():
    x = torch.randn(3, 64)
    x[0, :32] = 0.0
    x[1, 32:] = 1e-42
    for row, rounded in zip(x.numpy(), round_activations(x).numpy(), strict=True):
        for i in (0, 32):
            group, found = row[i : i + 32], rounded[i : i + 32]
            scale = np.abs(group).max() / np.float32(127)
            if scale < np.finfo(np.float32).tiny:
                assert not found.any()
            else:
                np.testing.assert_array_equal(found, np.rint(group / scale) * scale)


def test_activations_of_a_group_that_is_not_finite_become_nan_and_others_do_not():
    x = torch.ones(2, 64)
    x[0, 3], x[1, 40] = float("inf"), float("nan")
    rounded = round_activations(x)
    assert rounded[0, :32].isnan().all()
    assert rounded[1, 32:].isnan().all()
    assert torch.equal(rounded[0, 32:], x[0, 32:])
    assert torch.equal(rounded[1, :32], x[1, :32])


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("format", FORMATS)
def test_a_linear_over_blocks_multiplies_what_rounding_left(format, with_bias):
    weight = quantize_blocks(weight_of(24, 96), format)
    bias = torch.randn(24) if with_bias else None
    x = torch.randn(5, 96)
    expected = round_activations(x).double() @ dequantize_blocks(weight).double().T
    if bias is not None:
        expected += bias
    found = ops.linear(x, ops.prepare_linear(weight, bias))
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(("form", "near"), [("int8", 0.03), ("int4", 0.2)])
def test_a_float_weight_is_kept_in_the_form_that_was_asked_for(form, near):
    weight, x = weight_of(24, 64), torch.randn(5, 64)
    found = ops.linear(x, ops.prepare_linear(weight, form=form))
    if form == "int4":
        blocks = ops.linear(x, ops.prepare_linear(quantize_blocks(weight, "q4_1")))
        assert torch.equal(found, blocks)
    else:
        expected = round_rows(x) @ round_rows(weight).T
        torch.testing.assert_close(found, expected)
    size = weight.norm(dim=1) * x.norm(dim=1)[:, None]
    assert ((x @ weight.T - found).abs() < near * size).all()


def test_rows_are_rounded_to_int8_with_one_scale():
    x = torch.randn(4, 70)
    x[1] = 0.0
    x[2] = 1e-42
    x[3, 9] = float("inf")
    rounded = round_rows(x)
    scale = x[0].abs().max() / 127
    assert torch.equal(rounded[0], (x[0] * (1 / scale)).round() * scale)
    assert ((rounded[0] - x[0]).abs() <= scale / 2 * 1.001).all()
    assert not rounded[1:3].any()
    assert rounded[3].isnan().all()


def test_inputs_that_fill_no_block_are_a_smaller_one():
    weight = weight_of(8, 44)
    rounded = round_weight(weight, "int4")
    assert rounded.shape == weight.shape
    last = weight[:, 32:].repeat(1, 3)[:, :32]
    assert torch.equal(rounded[:, 32:], round_weight(last, "int4")[:, :12])
    x = torch.randn(3, 44)
    expected = round_activations(x) @ rounded.T
    torch.testing.assert_close(ops.linear(x, ops.prepare_linear(weight, form="int4")), expected)


def test_a_linear_over_blocks_gives_the_dtype_of_its_input():
    weight, bias = quantize_blocks(weight_of(8, 32), "q8_0"), torch.ones(8, dtype=torch.bfloat16)
    x = torch.randn(2, 32).bfloat16()
    found = ops.linear(x, ops.prepare_linear(weight, bias))
    assert found.dtype == torch.bfloat16
    expected = ops.linear(x.float(), ops.prepare_linear(weight, bias.float()))
    torch.testing.assert_close(found, expected.bfloat16())


@pytest.mark.parametrize("form", ["float", "int8", "int4"])
def test_an_embedding_and_its_tied_head_have_one_rounding(form):
    table, ids = weight_of(50, 64), torch.tensor([3, 49, 0, 3])
    embedding = ops.prepare_embedding(table, form)
    assert torch.equal(ops.embed(ids, embedding), round_weight(table, form)[ids])
    x = torch.randn(2, 64)
    head = ops.linear(x, ops.tied_head(embedding))
    assert torch.equal(head, ops.linear(x, ops.prepare_linear(table, form=form)))


def test_an_embedding_in_blocks_gives_what_they_mean():
    table = quantize_blocks(weight_of(50, 64), "q4_1")
    ids = torch.tensor([1, 7])
    found = ops.embed(ids, ops.prepare_embedding(table))
    assert torch.equal(found, dequantize_blocks(table)[ids])
