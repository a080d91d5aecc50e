import pytest
import torch

from phloem.mem_pool.kv import KVPool, bytes_per_token


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_keys_and_values_are_token_major_per_layer(dtype):
    pool = KVPool(33, num_layers=2, num_kv_heads=3, head_dim=8, dtype=dtype)
    for layer in range(2):
        for tensor in (pool.k(layer), pool.v(layer)):
            assert tensor.shape == (33, 3, 8)
            assert tensor.dtype == dtype
            assert tensor.is_contiguous()
    assert pool.nbytes == 33 * bytes_per_token(2, 3, 8, dtype)


def test_a_write_lands_in_one_layer_only():
    pool = KVPool(9, num_layers=2, num_kv_heads=1, head_dim=4)
    for layer in range(2):
        pool.k(layer).zero_()
        pool.v(layer).zero_()
    pool.k(1)[torch.tensor([3, 5])] = 1.0
    assert pool.k(1)[[3, 5]].eq(1).all()
    assert pool.k(1).sum() == 8
    assert not pool.k(0).any()
    assert not pool.v(0).any()
    assert not pool.v(1).any()


def test_the_padding_page_is_zero():
    pool = KVPool(64, num_layers=2, num_kv_heads=2, head_dim=8, page_size=16)
    for layer in range(2):
        assert not pool.k(layer)[:16].any()
        assert not pool.v(layer)[:16].any()


def test_a_pool_takes_no_memory_before_it_is_written(resident_bytes):
    before = resident_bytes()
    pool = KVPool(200_000, num_layers=4, num_kv_heads=4, head_dim=32)
    assert pool.nbytes > 700 << 20
    assert resident_bytes() - before < 64 << 20


def test_a_dtype_that_no_kernel_reads_is_refused():
    with pytest.raises(ValueError, match=r"cannot be torch\.int8: use one of torch\.float32"):
        KVPool(9, 1, 1, 4, dtype=torch.int8)


@pytest.mark.parametrize("sizes", [(0, 1, 1, 4), (9, 0, 1, 4), (9, 1, 0, 4), (9, 1, 1, 0)])
def test_sizes_that_hold_nothing_are_refused(sizes):
    with pytest.raises(ValueError, match="holds nothing"):
        KVPool(*sizes)


def test_padding_that_fills_the_pool_is_refused():
    with pytest.raises(ValueError, match="16 padding slots"):
        KVPool(16, 1, 1, 4, page_size=16)
