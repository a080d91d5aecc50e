"""KV pools: every dtype in every layout holds what a float32 pool holds, as closely as it can."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from phloem.mem_pool.kv import DTYPES, KVPool, KVShape

LAYOUTS = ["token", "page"]
TOLERANCES = {"float32": 0.0, "bfloat16": 2**-8, "float16": 2**-11, "int8": 1 / 254}
"""Of the largest element of a head; fp8 has one that is told below."""


def random_parts(shape, n, seed=0):
    """Heads of very different sizes, some of them zero."""
    generator = torch.Generator().manual_seed(seed)
    made = []
    for heads, dim in shape.parts:
        sizes = 10.0 ** torch.randint(-3, 3, (n, heads, 1), generator=generator)
        x = torch.randn(n, heads, dim, generator=generator) * sizes
        made.append(x * (torch.rand(n, heads, 1, generator=generator) > 0.1))
    return made


def slots_of(pool, n, page, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randperm(pool.num_slots - page, generator=generator)[:n] + page


@st.composite
def shapes(draw, latent=None):
    is_latent = draw(st.booleans()) if latent is None else latent
    return KVShape(
        num_layers=draw(st.integers(1, 2)),
        num_kv_heads=1 if is_latent else draw(st.integers(1, 3)),
        head_dim=draw(st.sampled_from([1, 8, 64, 80, 96, 128])),
        dtype=DTYPES[draw(st.sampled_from(sorted(DTYPES)))],
        rope_dim=draw(st.sampled_from([1, 32, 64])) if is_latent else None,
    )


pages = st.sampled_from([1, 2, 16, 64])
layouts = st.sampled_from(LAYOUTS)


def assert_close(name, found, x):
    amax = x.abs().amax(-1, keepdim=True)
    if name == "fp8_e4m3":
        bound = torch.maximum(x.abs() / 16, amax / 448 / 1024)
    else:
        bound = amax * TOLERANCES[name]
    if name == "float16":
        bound = bound.clamp(min=2**-25)  # denormal numbers
    assert torch.all((found - x).abs() <= bound * (1 + 1e-5))


@settings(max_examples=80, deadline=None)
@given(shapes(), pages, layouts, st.sampled_from([1, 3, 40]), st.integers(0, 99))
def test_every_form_holds_what_was_stored_within_its_precision(shape, page, layout, n, seed):
    pool = KVPool(page * (1 + -(-n // page)), shape, page_size=page, layout=layout)
    slots = slots_of(pool, n, page, seed)
    k, v = random_parts(shape, n, seed)
    layer = shape.num_layers - 1
    pool.store(layer, slots, k, v)
    keys, values = pool.gather(layer, slots)
    name = next(name for name, dtype in DTYPES.items() if dtype == shape.dtype)
    if shape.is_latent:
        assert torch.equal(keys[..., : shape.head_dim], values)
        assert_close(name, values, k)
        assert_close(name, keys[..., shape.head_dim :], v)
    else:
        assert_close(name, keys, k)
        assert_close(name, values, v)


@settings(max_examples=60, deadline=None)
@given(shapes(), pages, layouts, layouts, st.sampled_from([1, 3, 40]))
def test_bytes_of_one_pool_are_written_to_another_of_any_layout(shape, page, source, target, n):
    first, second = (
        KVPool(page * (2 + -(-n // page)), shape, page_size=page, layout=layout)
        for layout in (source, target)
    )
    here, there = slots_of(first, n, page, 1), slots_of(second, n, page, 2)
    assert first.fingerprint == second.fingerprint
    for layer in range(shape.num_layers):
        first.store(layer, here, *random_parts(shape, n, layer))
        data = first.read(here, layer)
        assert data.dtype == torch.uint8
        assert data.shape == (n, shape.bytes_per_token // shape.num_layers)
        second.write(there, layer, data)
    for layer in range(shape.num_layers):
        assert torch.equal(second.read(there, layer), first.read(here, layer))
        for a, b in zip(first.gather(layer, here), second.gather(layer, there), strict=True):
            assert torch.equal(a, b)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_storing_what_was_gathered_moves_it_by_the_rounding_of_a_scale_at_most(dtype, layout):
    shape = KVShape(1, 2, 64, dtype)
    pool = KVPool(96, shape, page_size=16, layout=layout)
    slots, others = slots_of(pool, 80, 16).split(40)
    pool.store(0, slots, *random_parts(shape, 40))
    pool.store(0, others, *pool.gather(0, slots))
    for a, b in zip(pool.gather(0, slots), pool.gather(0, others), strict=True):
        torch.testing.assert_close(a, b, rtol=2e-7, atol=0)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.int8], ids=str)
def test_the_tensors_show_each_slot_in_its_page(dtype, layout):
    shape = KVShape(1, 3, 8, dtype)
    pool = KVPool(64, shape, page_size=16, layout=layout)
    k, v = random_parts(shape, 48)
    pool.store(0, torch.arange(16, 64), k, v)
    part = pool.layer(0).k
    assert part.elements.tensor.shape == (4, 16, 3, 8)
    assert part.elements.tensor.is_contiguous() == (layout == "token")
    assert part.elements.tensor.transpose(1, 2).is_contiguous() == (layout == "page")
    seen = part.elements.tensor.float()
    if part.scales is not None:
        seen = seen * part.scales.tensor
    assert torch.equal(seen.reshape(64, 3, 8)[16:], pool.gather(0, torch.arange(16, 64))[0])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_a_write_lands_in_its_slots_of_one_layer_only(dtype, layout):
    shape = KVShape(2, 2, 4, dtype)
    pool = KVPool(32, shape, page_size=8, layout=layout)
    everywhere, ones = torch.arange(32), torch.ones(32, 2, 4)
    for layer in range(2):
        pool.store(layer, everywhere, ones, ones * 2)
    pool.store(1, torch.tensor([9, 30]), ones[:2] * 3, ones[:2] * 4)
    for layer, part, old, new in ((0, 0, 1, 1), (0, 1, 2, 2), (1, 0, 1, 3), (1, 1, 2, 4)):
        expected = ones * old
        expected[[9, 30]] = float(new)
        torch.testing.assert_close(
            pool.gather(layer, everywhere)[part], expected, rtol=1e-6, atol=0
        )


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_the_padding_page_is_zero(dtype, layout):
    pool = KVPool(64, KVShape(2, 2, 8, dtype), page_size=16, layout=layout)
    for layer in range(2):
        for part in pool.gather(layer, torch.arange(16)):
            assert not part.any()


def test_what_is_gathered_has_the_dtype_that_is_asked_for():
    for dtype in DTYPES.values():
        pool = KVPool(8, KVShape(1, 1, 4, dtype))
        assert pool.gather(0, torch.tensor([0]), torch.bfloat16)[0].dtype == torch.bfloat16


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_what_is_not_finite_is_seen_when_it_is_read(dtype):
    pool = KVPool(8, KVShape(1, 1, 4, dtype))
    for bad in (float("nan"), float("inf"), -float("inf")):
        x = torch.tensor([[[1.0, 2.0, bad, 0.0]], [[1.0, 2.0, 3.0, 0.0]]])
        pool.store(0, torch.tensor([3, 4]), x, x)
        for part in pool.gather(0, torch.tensor([3, 4])):
            assert not torch.isfinite(part[0]).all()
            assert torch.isfinite(part[1]).all()


def test_a_pool_takes_no_memory_before_it_is_written(resident_bytes):
    before = resident_bytes()
    pool = KVPool(200_000, KVShape(num_layers=4, num_kv_heads=4, head_dim=32))
    assert pool.nbytes > 700 << 20
    assert resident_bytes() - before < 64 << 20


def test_bytes_are_counted_with_scales():
    counted = {name: KVShape(3, 2, 64, dtype).bytes_per_token for name, dtype in DTYPES.items()}
    assert counted == {
        "float32": 3 * 2 * 2 * 256,
        "bfloat16": 3 * 2 * 2 * 128,
        "float16": 3 * 2 * 2 * 128,
        "int8": 3 * 2 * 2 * 68,
        "fp8_e4m3": 3 * 2 * 2 * 68,
    }
    assert KVShape(3, 1, 512, torch.bfloat16, rope_dim=64).bytes_per_token == 3 * 2 * 576
    assert KVShape(3, 1, 512, torch.int8, rope_dim=64).bytes_per_token == 3 * (576 + 8)
    assert KVPool(10, KVShape(3, 2, 64, torch.int8)).nbytes == 10 * counted["int8"]


def test_pools_that_cannot_read_each_other_have_different_fingerprints():
    forms = [KVShape(2, 1, 64, dtype) for dtype in DTYPES.values()]
    forms += [KVShape(1, 1, 64), KVShape(2, 2, 64), KVShape(2, 1, 32)]
    forms += [KVShape(2, 1, 64, rope_dim=64), KVShape(2, 1, 64, rope_dim=32)]
    assert len({form.fingerprint for form in forms}) == len(forms)


def test_a_dtype_that_no_pool_has_is_refused():
    with pytest.raises(ValueError, match=r"cannot be torch\.int16: use one of torch\.float32"):
        KVShape(1, 1, 4, dtype=torch.int16)


@pytest.mark.parametrize("sizes", [(0, 1, 4), (1, 0, 4), (1, 1, 0)])
def test_sizes_that_hold_nothing_are_refused(sizes):
    with pytest.raises(ValueError, match="holds nothing"):
        KVShape(*sizes)


def test_a_latent_form_of_many_heads_is_refused():
    with pytest.raises(ValueError, match="one head, not 2"):
        KVShape(1, 2, 512, rope_dim=64)


@pytest.mark.parametrize("slots", [0, 16, 33])
def test_slots_that_are_no_whole_pages_beside_the_padding_are_refused(slots):
    with pytest.raises(ValueError, match="16 padding slots"):
        KVPool(slots, KVShape(1, 1, 4), page_size=16)


def test_an_unknown_layout_is_refused():
    with pytest.raises(ValueError, match="'rows' is unknown: use 'token' or 'page'"):
        KVPool(8, KVShape(1, 1, 4), layout="rows")
