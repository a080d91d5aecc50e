"""AWQ and GPTQ weights, packed here bit by bit from the numbers they mean."""

import numpy as np
import pytest

from phloem.kernels.packed_int4 import awq_blocks, gptq_blocks
from phloem.kernels.torch_backend.blocks import dequantize_blocks

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def numbers_of(inputs, outputs, groups, seed=0):
    made = np.random.default_rng(seed)
    q = made.integers(0, 16, (inputs, outputs))
    zeros = made.integers(1, 16, (groups, outputs))
    scales = made.uniform(1e-3, 1e-2, (groups, outputs)).astype(np.float16)
    return q, zeros, scales


def words_of(numbers, order=range(8)):
    """`[rows, 8 * columns]` numbers below 16 as words, number `order[i]` in the bits 4 i."""
    rows, columns = numbers.shape
    words = np.zeros((rows, columns // 8), np.uint32)
    for i, place in enumerate(order):
        words |= numbers[:, place::8].astype(np.uint32) << np.uint32(4 * i)
    return words.view(np.int32)


def meant(q, zeros, scales):
    """`scale * (q - zero)`, `[out, in]`."""
    size = len(q) // len(scales)
    spread = scales.astype(np.float64).repeat(size, axis=0)
    return (spread * (q - zeros.repeat(size, axis=0))).T


def tolerance(zeros, scales, inputs):
    """Half a last place of the float16 that zero * scale is rounded to."""
    products = (zeros * scales.astype(np.float64)).repeat(inputs // len(scales), axis=0)
    return products.T * 2.0**-11 + 1e-9


@pytest.mark.parametrize(("inputs", "outputs", "groups"), [(32, 8, 1), (256, 24, 2), (96, 16, 3)])
def test_an_awq_weight_means_scale_times_q_less_zero(inputs, outputs, groups):
    q, zeros, scales = numbers_of(inputs, outputs, groups)
    weight = awq_blocks(words_of(q, AWQ_ORDER), words_of(zeros, AWQ_ORDER), scales)
    assert weight.format == "q4_1"
    assert weight.shape == (outputs, inputs)
    error = np.abs(dequantize_blocks(weight).numpy() - meant(q, zeros, scales))
    assert (error <= tolerance(zeros, scales, inputs)).all()


@pytest.mark.parametrize("version", ["v1", "v2"])
@pytest.mark.parametrize(("inputs", "outputs", "groups"), [(32, 8, 1), (256, 24, 2), (96, 16, 3)])
def test_a_gptq_weight_means_scale_times_q_less_zero(inputs, outputs, groups, version):
    q, zeros, scales = numbers_of(inputs, outputs, groups)
    stored = zeros - 1 if version == "v1" else zeros
    weight = gptq_blocks(
        words_of(q.T).T, words_of(stored), scales, np.arange(inputs) * groups // inputs,
        version=version,
    )  # fmt: skip
    assert weight.shape == (outputs, inputs)
    error = np.abs(dequantize_blocks(weight).numpy() - meant(q, zeros, scales))
    assert (error <= tolerance(zeros, scales, inputs)).all()


def test_symmetric_weights_lose_nothing():
    q, zeros, scales = numbers_of(128, 16, 1)
    zeros[:] = 8
    from_gptq = gptq_blocks(words_of(q.T).T, words_of(zeros - 1), scales)
    from_awq = awq_blocks(words_of(q, AWQ_ORDER), words_of(zeros, AWQ_ORDER), scales)
    expected = meant(q, zeros, scales).astype(np.float32)
    np.testing.assert_array_equal(dequantize_blocks(from_gptq), expected)
    np.testing.assert_array_equal(dequantize_blocks(from_awq), expected)


def test_a_zero_of_sixteen_is_stored_as_fifteen():
    q, zeros, scales = numbers_of(32, 8, 1)
    zeros[:] = 16
    weight = gptq_blocks(words_of(q.T).T, words_of(zeros - 1), scales)
    np.testing.assert_array_equal(
        dequantize_blocks(weight), meant(q, zeros, scales).astype(np.float32)
    )


def test_inputs_ordered_by_activation_are_refused():
    q, zeros, scales = numbers_of(64, 8, 2)
    mixed = np.arange(64) % 2
    with pytest.raises(ValueError, match="desc_act"):
        gptq_blocks(words_of(q.T).T, words_of(zeros), scales, mixed)


def test_groups_that_are_no_whole_blocks_are_refused():
    q, zeros, scales = numbers_of(48, 8, 3)
    with pytest.raises(ValueError, match="3 groups of 48 inputs"):
        gptq_blocks(words_of(q.T).T, words_of(zeros), scales)
    with pytest.raises(ValueError, match="3 groups of 48 inputs"):
        awq_blocks(words_of(q, AWQ_ORDER), words_of(zeros, AWQ_ORDER), scales)


def test_weights_of_other_widths_are_refused():
    q, zeros, scales = numbers_of(64, 16, 2)
    with pytest.raises(ValueError, match="only 4-bit weights"):
        awq_blocks(words_of(q, AWQ_ORDER), words_of(zeros, AWQ_ORDER)[:, :1], scales)
    with pytest.raises(ValueError, match="only 4-bit weights"):
        gptq_blocks(words_of(q.T).T, words_of(zeros), scales[:, :8])
