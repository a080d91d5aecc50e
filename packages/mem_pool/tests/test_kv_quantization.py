"""The arithmetic of quantized KV, bit for bit against numpy, as a native kernel would do it."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from phloem.mem_pool.kv import dequantize, quantize
from phloem.mem_pool.kv.quantization import LIMITS

INT8, FP8 = torch.int8, torch.float8_e4m3fn
FP8_CODES = torch.arange(127, dtype=torch.uint8)
"""Of all finite numbers that are not negative, in order."""
FP8_NUMBERS = FP8_CODES.view(FP8).double().numpy()


def nearest_fp8(x):
    """Codes of the nearest numbers, of two equally near the one with an even code."""
    magnitude = np.abs(x).astype(np.float64)
    above = np.searchsorted(FP8_NUMBERS, magnitude).clip(1, len(FP8_NUMBERS) - 1)
    middle = (FP8_NUMBERS[above - 1] + FP8_NUMBERS[above]) / 2
    even = above - above % 2
    codes = np.where(magnitude < middle, above - 1, np.where(magnitude > middle, above, even))
    return (codes + 128 * np.signbit(x)).astype(np.uint8)


def expected(x, dtype):
    """(bytes, scales), in numpy's float32."""
    amax = np.maximum(np.abs(x).max(-1, keepdims=True), np.float32(2.0**-100))
    scales = amax / np.float32(LIMITS[dtype])
    quotients = x / scales
    assert quotients.dtype == np.float32
    if dtype == INT8:
        return np.rint(quotients).astype(np.int8).view(np.uint8), scales
    return nearest_fp8(quotients), scales


dims = st.sampled_from([1, 2, 64, 80, 96, 128])
sizes = st.sampled_from([0.0, 1e-45, 1e-38, 1e-31, 1e-6, 1.0, 1e4, 1e30, 3e38])


@settings(max_examples=150, deadline=None)
@given(st.sampled_from([INT8, FP8]), dims, sizes, st.integers(0, 999))
def test_bits_are_those_of_the_formula(dtype, dim, size, seed):
    x = np.random.default_rng(seed).uniform(-1, 1, (3, 2, dim)).astype(np.float32)
    x *= np.float32(size)
    values, scales = quantize(torch.from_numpy(x), dtype)
    bits, expected_scales = expected(x, dtype)
    np.testing.assert_array_equal(scales.numpy(), expected_scales)
    np.testing.assert_array_equal(values.view(torch.uint8).numpy(), bits)


def test_ties_go_to_the_even_number():
    x = torch.tensor([127.0, 0.5, 1.5, 2.5, -0.5, -1.5, -126.5])
    assert quantize(x, INT8).values.tolist() == [127, 0, 2, 2, 0, -2, -126]
    x = torch.tensor([448.0, 17.0, 19.0, 2**-10, -(2**-10) * 3])
    assert quantize(x, FP8).values.float().tolist() == [448.0, 16.0, 20.0, 0.0, -(2**-8)]


@pytest.mark.parametrize("dtype", LIMITS, ids=str)
def test_the_largest_element_becomes_the_limit(dtype):
    x = torch.randn(5000, 8) * torch.logspace(-20, 20, 5000).unsqueeze(1)
    values, _ = quantize(x, dtype)
    assert torch.all(values.float().abs().amax(-1) == LIMITS[dtype])


@pytest.mark.parametrize("dtype", LIMITS, ids=str)
def test_zeros_stay_zeros(dtype):
    values, scales = quantize(torch.zeros(2, 3, 8), dtype)
    assert torch.isfinite(scales).all()
    assert torch.equal(dequantize(values, scales), torch.zeros(2, 3, 8))


@pytest.mark.parametrize("dtype", LIMITS, ids=str)
def test_halves_are_quantized_as_the_floats_that_they_are(dtype):
    x = torch.randn(4, 2, 16).bfloat16()
    for a, b in zip(quantize(x, dtype), quantize(x.float(), dtype), strict=True):
        assert torch.equal(a.view(torch.uint8), b.view(torch.uint8))


@pytest.mark.parametrize("dtype", LIMITS, ids=str)
def test_the_argument_stays_as_it_is(dtype):
    x = torch.randn(4, 2, 16)
    before = x.clone()
    quantize(x, dtype)
    assert torch.equal(x, before)


def test_another_dtype_is_refused():
    with pytest.raises(
        ValueError, match=r"torch\.int16 is no quantized dtype: use one of torch\.int8"
    ):
        quantize(torch.zeros(1, 4), torch.int16)
