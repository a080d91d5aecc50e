import pytest
import torch

from phloem.kernels import KVTensors, RopeConfig, cos_sin, get_ops, inverse_frequencies
from phloem.kernels.triton_backend.ops import TritonOps

layers = pytest.importorskip("phloem.mem_pool.kv.layers", reason="phloem-mem-pool is not installed")
triton, reference = TritonOps(), get_ops("torch")

TOKENS, SLOTS = 5, 64
FP8 = torch.float8_e4m3fn


def layer(dtype, page=16, layout="token", groups=3, dim=64, value_dim=64):
    place = layers.Place(SLOTS, page, layout, torch.device("cpu"))
    scales = torch.float32 if dtype in (torch.int8, FP8) else None
    made = layers.KVLayer(
        layers.Part(place, groups, dim, dtype, scales),
        layers.Part(place, groups, value_dim, dtype, scales),
    )
    for part in made.parts:
        for plane in part.planes:
            plane.tensor.zero_()
    return made


def projected(dtype, heads=9, groups=3, dim=64, seed=0):
    """q, k, v as views of one projection, angles, slots."""
    generator = torch.Generator().manual_seed(seed)
    qkv = torch.randn(TOKENS, (heads + 2 * groups) * dim, generator=generator).to(dtype)
    q, k, v = qkv.view(TOKENS, -1, dim).split((heads, groups, groups), dim=1)
    frequencies = inverse_frequencies(RopeConfig(), dim)
    angles = cos_sin(torch.tensor([3, 0, 500, 17, 18]), frequencies)
    return q, k, v, angles, torch.tensor([1, 40, 17, 16, 63])


def both(mine, theirs, **shape):
    """Run both backends; what each left in q, k and the cache."""
    results = []
    for ops, kv in ((triton, mine), (reference, theirs)):
        q, k, v, angles, slots = projected(**shape)
        ops.rotary_store_kv(q, k, v, angles, kv, slots)
        results.append((q, k, *kv.gather(slots, torch.float32)))
    return results


@pytest.mark.parametrize("layout", ["token", "page"])
@pytest.mark.parametrize("page", [1, 16])
@pytest.mark.parametrize("cache", [torch.float32, torch.bfloat16, torch.float16])
def test_heads_are_rotated_and_stored_as_the_reference_does(cache, page, layout):
    pair = layer(cache, page, layout), layer(cache, page, layout)
    mine, theirs = both(*pair, dtype=torch.float32)
    for found, expected in zip(mine, theirs):
        torch.testing.assert_close(
            found, expected, rtol=1e-2 if cache != torch.float32 else 1e-5, atol=1e-5
        )


@pytest.mark.parametrize("dim", [64, 80, 96, 128])
@pytest.mark.parametrize(("heads", "groups"), [(2, 2), (9, 3), (4, 1)])
def test_any_heads_are_rotated(heads, groups, dim):
    caches = [KVTensors(*torch.zeros(2, SLOTS, groups, dim)) for _ in range(2)]
    mine, theirs = both(*caches, dtype=torch.float32, heads=heads, groups=groups, dim=dim)
    for found, expected in zip(mine, theirs):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_bfloat16_is_rotated_within_its_last_bit():
    mine, theirs = both(layer(torch.bfloat16), layer(torch.bfloat16), dtype=torch.bfloat16)
    for found, expected in zip(mine, theirs):
        # The interpreter cuts bits off where a GPU rounds.
        torch.testing.assert_close(found.float(), expected.float(), rtol=2**-7, atol=1e-5)


@pytest.mark.parametrize("page", [1, 16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_int8_is_stored_in_the_bits_of_the_layers_own_arithmetic(dtype, page):
    mine, theirs = layer(torch.int8, page), layer(torch.int8, page)
    q, k, v, angles, slots = projected(dtype)
    v[2, 1] = 0.0
    triton.rotary_store_kv(q, k, v, angles, mine, slots)
    theirs.store(slots, k, v)
    for found, expected in zip(mine.parts, theirs.parts):
        assert torch.equal(found.elements.tensor, expected.elements.tensor)
        assert torch.equal(found.scales.tensor, expected.scales.tensor)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_stays_visible_in_int8_and_harms_no_other_head(bad):
    mine, clean = layer(torch.int8), layer(torch.int8)
    q, k, v, angles, slots = projected(torch.float32)
    triton.rotary_store_kv(q, k.clone(), v.clone(), angles, clean, slots)
    k[2, 1, 5], v[2, 1, 5] = bad, bad
    triton.rotary_store_kv(q, k, v, angles, mine, slots)
    for found, other in zip(mine.gather(slots, torch.float32), clean.gather(slots, torch.float32)):
        assert not found[2, 1].isfinite().any()
        found[2, 1] = other[2, 1]
        assert torch.equal(found, other)


def test_a_layer_that_the_kernel_cannot_write_stores_by_itself():
    mine, theirs = both(layer(FP8), layer(FP8), dtype=torch.float32)
    for found, expected in zip(mine, theirs):
        torch.testing.assert_close(found, expected, rtol=0.07, atol=1e-2)


def test_values_may_be_narrower_than_keys():
    q, k, v, angles, slots = projected(torch.float32)
    kv = KVTensors(torch.zeros(SLOTS, 3, 64), torch.zeros(SLOTS, 3, 40))
    triton.rotary_store_kv(q, k, v[..., :40], angles, kv, slots)
    assert torch.equal(kv.v[slots], v[..., :40])


def test_a_strided_last_axis_is_refused():
    q, k, v, angles, slots = projected(torch.float32)
    turned = q.transpose(1, 2).contiguous().transpose(1, 2)
    with pytest.raises(ValueError, match="must be contiguous"):
        triton.rotary_store_kv(turned, k, v, angles, layer(torch.float32), slots)
