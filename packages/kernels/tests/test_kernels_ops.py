import numpy as np
import pytest
import torch

from phloem.kernels import KVTensors, RopeConfig, cos_sin, get_ops, inverse_frequencies
from phloem.kernels.torch_backend import linear

ops = get_ops()
DTYPES = [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)]


@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
def test_rms_norm_divides_by_the_root_mean_square(dtype, tolerance):
    x, weight = torch.randn(5, 48, dtype=dtype), torch.randn(48, dtype=dtype)
    wide = x.double().numpy()
    expected = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-5) * weight.double().numpy()
    found = ops.rms_norm(x, weight, 1e-5)
    assert found.dtype == dtype
    np.testing.assert_allclose(found.double(), expected, rtol=tolerance, atol=tolerance)


def test_add_rms_norm_gives_the_norm_and_the_sum_and_leaves_its_inputs():
    x, residual, weight = torch.randn(3, 32), torch.randn(3, 32), torch.randn(32)
    before = x.clone(), residual.clone()
    normed, total = ops.add_rms_norm(x, residual, weight, 1e-6)
    torch.testing.assert_close(total, before[0] + before[1])
    torch.testing.assert_close(normed, ops.rms_norm(total, weight, 1e-6))
    assert torch.equal(x, before[0])
    assert torch.equal(residual, before[1])


def test_silu_mul_gates_the_second_half_by_the_first():
    gate_up = torch.randn(4, 20)
    gate, up = gate_up.double().numpy()[:, :10], gate_up.double().numpy()[:, 10:]
    expected = gate / (1 + np.exp(-gate)) * up
    np.testing.assert_allclose(ops.silu_mul(gate_up), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("block", [1, 2, 8, 32])
def test_hadamard_multiplies_blocks_by_sylvesters_matrix(block):
    matrix = np.ones((1, 1))
    while len(matrix) < block:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    x = torch.randn(3, 96)
    expected = x.double().numpy().reshape(3, -1, block) @ matrix / block**0.5
    found = ops.hadamard(x, block)
    np.testing.assert_allclose(found, expected.reshape(3, 96), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("block", [0, 3, 64])
def test_a_hadamard_block_is_a_power_of_two_that_divides(block):
    with pytest.raises(ValueError, match=f"in blocks of {block}: a block must be a power of two"):
        ops.hadamard(torch.randn(2, 96), block)


@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("num_rows", [1, 3, 17, 70])
@pytest.mark.parametrize("packed", [True, False])
def test_linear_multiplies_by_the_transposed_weight(
    dtype, tolerance, with_bias, num_rows, packed, monkeypatch
):
    if not packed:
        monkeypatch.setattr(linear, "can_pack", lambda dtype: False)
    weight = torch.randn(24, 32).to(dtype)
    bias = torch.randn(24).to(dtype) if with_bias else None
    x = torch.randn(num_rows, 32).to(dtype)
    expected = x.double() @ weight.double().T + (bias.double() if with_bias else 0.0)
    found = ops.linear(x, ops.prepare_linear(weight, bias))
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), expected, rtol=tolerance, atol=8 * tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
def test_rotary_turns_pairs_by_their_angle_and_stores_k_and_v_at_the_slots(dtype, tolerance):
    heads, groups, dim = 4, 2, 8
    qkv = torch.randn(3, heads + 2 * groups, dim).to(dtype)
    q, k, v = qkv.split((heads, groups, groups), dim=1)
    before = q.double().numpy(), k.double().numpy(), v.clone()
    kv = KVTensors(*torch.zeros(2, 10, groups, dim, dtype=dtype))
    positions, slots = torch.tensor([0, 5, 1000]), torch.tensor([7, 2, 9])
    frequencies = inverse_frequencies(RopeConfig(), dim)
    ops.rotary_store_kv(q, k, v, cos_sin(positions, frequencies), kv, slots)

    angles = positions.numpy()[:, None] * frequencies.double().numpy()
    turn = np.exp(1j * angles)[:, None, :]
    for found, original in ((q, before[0]), (k, before[1])):
        turned = (original[..., : dim // 2] + 1j * original[..., dim // 2 :]) * turn
        expected = np.concatenate((turned.real, turned.imag), -1)
        np.testing.assert_allclose(found.double(), expected, rtol=tolerance, atol=1e-3 + tolerance)
    assert torch.equal(kv.k[slots], k)
    assert torch.equal(kv.v[slots], before[2])
    untouched = [s for s in range(10) if s not in slots.tolist()]
    assert not kv.k[untouched].any()
    assert not kv.v[untouched].any()


def test_without_the_ops_of_onednn_linears_are_plain(monkeypatch):
    def fail(*_):
        raise NotImplementedError

    monkeypatch.setattr(linear, "_pack", fail)
    linear.can_pack.cache_clear()
    assert not linear.can_pack(torch.float32)
    monkeypatch.undo()
    linear.can_pack.cache_clear()
    assert not linear.can_pack(torch.float64)
