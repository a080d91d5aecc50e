import pytest
import torch

from phloem.kernels import get_ops
from phloem.kernels.triton_backend.ops import TritonOps

triton, reference = TritonOps(), get_ops("torch")
TOLERANCE = {
    torch.float32: {"rtol": 1e-5, "atol": 1e-6},
    torch.bfloat16: {"rtol": 0.02, "atol": 0.02},
    torch.float16: {"rtol": 2e-3, "atol": 2e-3},
}
dtypes = pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
widths = pytest.mark.parametrize("hidden", [1, 64, 576, 1000])


def randn(*shape, dtype, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@dtypes
@widths
def test_rms_norm_matches_the_reference(dtype, hidden):
    x, weight = randn(3, hidden, dtype=dtype), randn(hidden, dtype=dtype, seed=1)
    expected = reference.rms_norm(x, weight, 1e-5)
    found = triton.rms_norm(x, weight, 1e-5)
    assert found.dtype == dtype
    torch.testing.assert_close(found, expected, **TOLERANCE[dtype])


@dtypes
@widths
def test_add_rms_norm_gives_the_rounded_sum_and_its_norm_and_keeps_its_inputs(dtype, hidden):
    x, residual = randn(3, hidden, dtype=dtype), randn(3, hidden, dtype=dtype, seed=2)
    before = x.clone(), residual.clone()
    weight = randn(hidden, dtype=dtype, seed=1)
    found = triton.add_rms_norm(x, residual, weight, 1e-5)
    expected = reference.add_rms_norm(x, residual, weight, 1e-5)
    # The interpreter cuts bits off where a GPU rounds to bfloat16.
    last_bit = 2**-7 if dtype == torch.bfloat16 else 0.0
    torch.testing.assert_close(found.residual, expected.residual, rtol=last_bit, atol=0)
    torch.testing.assert_close(found.normed, expected.normed, **TOLERANCE[dtype])
    assert torch.equal(x, before[0])
    assert torch.equal(residual, before[1])


@dtypes
@pytest.mark.parametrize("width", [1, 48, 1536, 2050])
def test_silu_mul_matches_the_reference(dtype, width):
    gate_up = 4 * randn(3, 2 * width, dtype=dtype)
    torch.testing.assert_close(
        triton.silu_mul(gate_up), reference.silu_mul(gate_up), **TOLERANCE[dtype]
    )


def test_rows_may_be_views_of_wider_ones():
    wide, weight = randn(4, 200, dtype=torch.float32), randn(96, dtype=torch.float32)
    view = wide[:, 8:104]
    torch.testing.assert_close(
        triton.rms_norm(view, weight, 1e-5), reference.rms_norm(view, weight, 1e-5)
    )
    torch.testing.assert_close(triton.silu_mul(view), reference.silu_mul(view))
    transposed = wide[:, :4].T
    torch.testing.assert_close(
        triton.rms_norm(transposed, weight[:4], 1e-5),
        reference.rms_norm(transposed, weight[:4], 1e-5),
    )


def test_no_rows_are_no_work():
    nothing, weight = torch.empty(0, 64), torch.ones(64)
    assert triton.rms_norm(nothing, weight, 1e-5).shape == (0, 64)
    assert triton.add_rms_norm(nothing, nothing, weight, 1e-5).residual.shape == (0, 64)
    assert triton.silu_mul(nothing).shape == (0, 32)


def test_a_row_has_the_same_bits_alone_as_among_others_and_nan_stays_in_its_row():
    x, weight = randn(5, 576, dtype=torch.float32), torch.ones(576)
    together = triton.rms_norm(x, weight, 1e-5)
    assert torch.equal(triton.rms_norm(x[3:4], weight, 1e-5), together[3:4])
    x[1, 7] = float("nan")
    found = triton.rms_norm(x, weight, 1e-5)
    assert found[1].isnan().all()
    assert torch.equal(found[[0, 2, 3, 4]], together[[0, 2, 3, 4]])
