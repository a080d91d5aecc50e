"""The native short way of greedy steps against the general one, on a model of two layers."""

import numpy as np
import pytest
import torch

from phloem.kernels import AttentionSpec, DecoderLayer, DecoderSpec, KVTensors
from phloem.kernels.cpu_backend.library import library_status
from phloem.kernels.cpu_backend.ops import CpuOps

STATUS = library_status()
pytestmark = pytest.mark.skipif(not STATUS.usable, reason=STATUS.reason)
HIDDEN, HEADS, KV_HEADS, DIM, INNER, VOCAB, SLOTS, WIDTH = 64, 4, 2, 16, 96, 300, 400, 130


class Cache:
    def __init__(self, seed=0):
        generator = torch.Generator().manual_seed(seed)
        self.layers = [
            KVTensors(*torch.randn(2, SLOTS, KV_HEADS, DIM, generator=generator)) for _ in range(2)
        ]

    def layer(self, index):
        return self.layers[index]


@pytest.fixture(scope="module")
def ops():
    return CpuOps(threads=2)


@pytest.fixture(scope="module", params=["float", "int8", "int4"])
def spec(request, ops):
    torch.manual_seed(1)

    def linear(out, inputs):
        return ops.prepare_linear(torch.randn(out, inputs) / 8, None, request.param)

    def layer():
        qkv = linear((HEADS + 2 * KV_HEADS) * DIM, HIDDEN)
        rest = linear(HIDDEN, HEADS * DIM), torch.rand(HIDDEN)
        gate_up, down = linear(2 * INNER, HIDDEN), linear(HIDDEN, INNER)
        return DecoderLayer(torch.rand(HIDDEN), qkv, *rest, gate_up, down)

    return DecoderSpec(
        attention=AttentionSpec(HEADS, KV_HEADS, DIM, torch.float32, torch.device("cpu")),
        embedding=ops.prepare_embedding(torch.randn(VOCAB, HIDDEN), request.param),
        layers=(layer(), layer()),
        norm=torch.ones(HIDDEN),
        head=linear(VOCAB, HIDDEN),
        rms_norm_eps=1e-5,
        frequencies=torch.rand(DIM // 2),
    )


def step(count, seed=0):
    """The arrays of `count` decodes: (row_table, rows, query_lens, seq_lens, ids, slots)."""
    rng = np.random.default_rng(seed)
    table = rng.integers(1, SLOTS, (count + 2, WIDTH)).astype(np.int32)
    rows = rng.permutation(count + 2)[:count].astype(np.int32)
    seq_lens = rng.integers(1, WIDTH + 1, count).astype(np.int32)
    slots = rng.permutation(np.arange(1, SLOTS))[:count].astype(np.int32)
    table[rows, seq_lens - 1] = slots
    ids = rng.integers(0, VOCAB, count).astype(np.int32)
    return [table, rows, np.ones(count, np.int32), seq_lens, ids, slots]


def chunks(lengths, seed=0):
    """The same for rows that compute so many tokens each, the last of as many as fit."""
    rng = np.random.default_rng(seed)
    queries, count = np.array(lengths, np.int32), len(lengths)
    total = int(queries.sum())
    slots = rng.permutation(np.arange(1, SLOTS))[:total].astype(np.int32)
    table = rng.integers(1, SLOTS, (count, WIDTH)).astype(np.int32)
    seq_lens = np.minimum(queries + rng.integers(0, 60, count), WIDTH).astype(np.int32)
    at = 0
    for row, (query, length) in enumerate(zip(lengths, seq_lens, strict=True)):
        table[row, length - query : length] = slots[at : at + query]
        at += query
    ids = rng.integers(0, VOCAB, total).astype(np.int32)
    return [table, np.arange(count, dtype=np.int32), queries, seq_lens, ids, slots]


def general(ops, spec, arrays, bits=None):
    """What forward and greedy give, and the cache behind them."""
    table, rows, query_lens, seq_lens, ids, slots = arrays
    cache, decoder = Cache(), ops.decoder(spec)
    plan = ops.plan_attention(table, rows, query_lens, seq_lens, spec.attention)
    positions = np.concatenate(
        [np.arange(length - n, length) for n, length in zip(query_lens, seq_lens, strict=True)]
    )
    given = (torch.from_numpy(x.astype(np.int64)) for x in (ids, positions, slots))
    hidden = decoder.forward(*given, plan, cache)
    return decoder.greedy(hidden[np.cumsum(query_lens) - 1], bits), cache


def assert_same_bits(ops, spec, steps, arrays):
    cache = Cache()
    expected, expected_cache = general(ops, spec, arrays)
    assert steps.run(*arrays, cache)
    assert steps.tokens().tolist() == expected.ids.tolist()
    for ours, theirs in zip(cache.layers, expected_cache.layers, strict=True):
        assert torch.equal(ours.k, theirs.k)
        assert torch.equal(ours.v, theirs.v)


@pytest.mark.parametrize("count", [1, 2, 17])
def test_tokens_and_cache_are_the_same_bits(ops, spec, count):
    steps = ops.decoder(spec).greedy_steps()
    for seed in range(3):
        assert_same_bits(ops, spec, steps, step(count, seed))


@pytest.mark.parametrize("lengths", [(100,), (1, 64, 3), (30, 1, 1, 90), (7, 7)])
def test_prompts_are_the_same_bits(ops, spec, lengths):
    steps = ops.decoder(spec).greedy_steps()
    for seed in range(2):
        assert_same_bits(ops, spec, steps, chunks(lengths, seed))
        fewer = step(2, seed)
        assert steps.run(*fewer, Cache())
        assert steps.tokens().tolist() == general(ops, spec, fewer)[0].ids.tolist()


def test_memory_is_float32_whatever_torch_makes_by_default(ops, spec):
    decoder, arrays = ops.decoder(spec), chunks((100, 90))
    expected, _ = general(ops, spec, arrays)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        steps = decoder.greedy_steps()
        assert steps.run(*arrays, Cache())
        assert steps._hidden.dtype == torch.float32
        assert steps.tokens().tolist() == expected.ids.tolist()
    finally:
        torch.set_default_dtype(before)


def test_room_that_could_not_be_made_is_not_used(ops, spec, monkeypatch):
    steps, small, large = ops.decoder(spec).greedy_steps(), step(1), chunks((100,))
    make = torch.empty

    def refuse(*size, **settings):
        raise MemoryError

    monkeypatch.setattr(torch, "empty", refuse)
    with pytest.raises(MemoryError):
        steps.run(*large, Cache())
    monkeypatch.setattr(torch, "empty", make)
    for arrays in (small, large):
        assert steps.run(*arrays, Cache())
        assert steps.tokens().tolist() == general(ops, spec, arrays)[0].ids.tolist()


@pytest.mark.parametrize("arrays", [step(3), chunks((30, 1, 90))], ids=["decodes", "prompts"])
def test_a_step_in_one_go_is_the_same_and_bits_may_still_come(ops, spec, arrays):
    steps, bits = ops.decoder(spec).greedy_steps(), np.zeros((3, 10), np.int32)
    expected, expected_cache = general(ops, spec, arrays)
    cache = Cache()
    assert steps.run(*arrays, cache, choose=True)
    assert steps.tokens().tolist() == expected.ids.tolist()
    assert torch.equal(cache.layers[1].k, expected_cache.layers[1].k)
    bits[:, 1] = 1 << 7
    assert steps.tokens(bits).tolist() == [39] * 3
    assert steps.tokens().tolist() == expected.ids.tolist()


def test_the_newest_tokens_stand_by_row_of_the_table(ops, spec):
    newest = np.full(5, -1, np.int64)
    steps, arrays = ops.decoder(spec).greedy_steps(newest), step(3)
    for choose in (False, True):
        newest[:] = -1
        assert steps.run(*arrays, Cache(), choose=choose)
        tokens = steps.tokens().tolist()
        assert newest[arrays[1]].tolist() == tokens
        assert (newest == -1).sum() == 2
    other = ops.decoder(spec).greedy_steps(np.zeros(4, np.int64))
    assert not other.run(*arrays, Cache()), "it has no entry for each row"


def test_bits_say_which_tokens_are_looked_at(ops, spec):
    steps, arrays = ops.decoder(spec).greedy_steps(), step(3)
    bits = np.random.default_rng(2).integers(-(2**31), 2**31, (3, 10)).astype(np.int32)
    expected, _ = general(ops, spec, arrays, bits)
    assert steps.run(*arrays, Cache())
    assert steps.tokens(bits).tolist() == expected.ids.tolist()
    bits[1] = 0
    assert steps.tokens(bits) is None
    found = steps.found()
    assert found.allowed.tolist() == [True, False, True]
    assert found.ids[::2].tolist() == expected.ids[::2].tolist()
    with pytest.raises(ValueError, match="shape"):
        steps.tokens(bits[:, :3])


def test_a_table_of_any_layout_and_then_another_is_read(ops, spec):
    steps, arrays = ops.decoder(spec).greedy_steps(), step(5)
    expected, _ = general(ops, spec, arrays)
    table = arrays[0]
    wide = np.zeros((len(table), 2 * WIDTH), np.int32)
    wide[:, :WIDTH] = table
    for same in (table, wide[:, :WIDTH], table.copy()):
        assert steps.run(same, *arrays[1:], Cache())
        assert steps.tokens().tolist() == expected.ids.tolist()
    assert not steps.run(np.asfortranarray(table), *arrays[1:], Cache())


@pytest.mark.parametrize(
    ("array", "value"),
    [(1, -1), (1, 5), (2, 0), (2, 2), (3, 0), (3, WIDTH + 1), (4, -1)],
    ids=lambda value: str(value),
)
def test_what_is_no_step_is_left_alone(ops, spec, array, value):
    steps, arrays, cache = ops.decoder(spec).greedy_steps(), step(3), Cache()
    before = [layer.k.clone() for layer in cache.layers]
    arrays[array] = arrays[array].copy()
    arrays[array][1] = value
    assert not steps.run(*arrays, cache)
    assert all(torch.equal(a, b.k) for a, b in zip(before, cache.layers, strict=True))


def test_arrays_of_different_lengths_and_none_at_all_are_no_step(ops, spec):
    steps, arrays = ops.decoder(spec).greedy_steps(), step(3)
    for array in range(1, 6):
        shorter = [x[:2] if i == array else x for i, x in enumerate(arrays)]
        assert not steps.run(*shorter, Cache())
    assert not steps.run(arrays[0], *(x[:0] for x in arrays[1:]), Cache())
    assert steps.run(*arrays, Cache())


def test_a_cache_that_is_not_native_is_not_read(ops, spec):
    steps, cache = ops.decoder(spec).greedy_steps(), Cache()
    cache.layers = [KVTensors(layer.k.half(), layer.v.half()) for layer in cache.layers]
    assert not steps.run(*step(2), cache)
    assert steps.run(*step(2), Cache())
