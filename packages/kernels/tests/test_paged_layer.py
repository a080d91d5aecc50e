import pytest
import torch

from phloem.kernels import KVTensors
from phloem.kernels.paged_layer import is_paged, paged_tensors

layers = pytest.importorskip("phloem.mem_pool.kv.layers", reason="phloem-mem-pool is not installed")


@pytest.mark.parametrize("layout", ["token", "page"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
def test_the_tensors_of_a_pools_layer_hold_what_it_gathers(layout, dtype):
    place = layers.Place(12, 4, layout, torch.device("cpu"))
    scales = torch.float32 if dtype == torch.int8 else None
    layer = layers.KVLayer(
        layers.Part(place, 2, 8, dtype, scales), layers.Part(place, 2, 6, dtype, scales)
    )
    slots = torch.tensor([5, 11, 2])
    layer.store(slots, torch.randn(3, 2, 8), torch.randn(3, 2, 6))
    assert is_paged(layer)
    found = paged_tensors(layer)
    k, v = found.k[slots // 4, slots % 4].float(), found.v[slots // 4, slots % 4].float()
    if scales is not None:
        k = k * found.k_scales[slots // 4, slots % 4]
        v = v * found.v_scales[slots // 4, slots % 4]
    for mine, theirs in zip((k, v), layer.gather(slots, torch.float32)):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=0)


def test_plain_tensors_are_pages_of_one_slot():
    kv = KVTensors(torch.randn(6, 2, 8), torch.randn(6, 2, 5))
    found = paged_tensors(kv)
    assert not is_paged(kv)
    assert found.k_scales is None
    assert found.v_scales is None
    torch.testing.assert_close(found.k[:, 0], kv.k)
    assert found.v.shape == (6, 1, 2, 5)
    assert found.v.data_ptr() == kv.v.data_ptr()


def test_a_latent_layer_has_no_key_and_value_planes():
    place = layers.Place(8, 1, "token", torch.device("cpu"))
    parts = [layers.Part(place, 1, dim, torch.float32, None) for dim in (16, 4)]
    assert paged_tensors(layers.LatentKVLayer(*parts)) is None
