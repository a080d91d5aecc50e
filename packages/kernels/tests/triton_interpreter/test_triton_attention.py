import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from phloem.kernels import AttentionSpec, KVTensors, get_ops
from phloem.kernels.triton_backend.attention import Tiles, lay_out
from phloem.kernels.triton_backend.attention_kernels import SPAN_LENGTH
from phloem.kernels.triton_backend.ops import TritonOps

layers = pytest.importorskip("phloem.mem_pool.kv.layers", reason="phloem-mem-pool is not installed")
triton, reference = TritonOps(), get_ops("torch")
CPU = torch.device("cpu")
FP8 = torch.float8_e4m3fn


def make_spec(groups=2, share=3, dim=64, dtype=torch.float32, **more):
    return AttentionSpec(groups * share, groups, dim, dtype, CPU, **more)


class Case:
    """Rows of (queries, length) with pages of their own, scattered; what nobody owns is NaN."""

    def __init__(self, rows, spec, page=16, cache=torch.float32, layout="token", seed=0):
        rng, self.spec = np.random.default_rng(seed), spec
        self.query_lens, self.seq_lens = np.array(rows, np.int32).T
        pages = [-(-n // page) for _, n in rows]
        free = rng.permutation(np.arange(1, 1 + sum(pages))).astype(np.int32)
        self.rows = rng.permutation(len(rows) + 2)[: len(rows)].astype(np.int32)
        self.table = np.zeros((len(rows) + 2, max(pages) * page), np.int32)
        for row, end, count in zip(self.rows, np.cumsum(pages), pages):
            slots = free[end - count : end, None] * page + np.arange(page)
            self.table[row, : count * page] = slots.reshape(-1)
        place = layers.Place((1 + len(free)) * page, page, layout, CPU)
        scales = torch.float32 if cache in (torch.int8, FP8) else None
        groups = spec.num_kv_heads
        self.kv = layers.KVLayer(
            layers.Part(place, groups, spec.head_dim, cache, scales),
            layers.Part(place, groups, spec.value_dim, cache, scales),
        )
        generator = torch.Generator().manual_seed(seed)
        if scales is None:
            self.kv.k.elements.tensor.fill_(float("nan"))
            self.kv.v.elements.tensor.fill_(float("nan"))
        slots = [self.table[row, :n] for row, n in zip(self.rows, self.seq_lens)]
        slots = torch.from_numpy(np.concatenate([[0], *slots]).astype(np.int64))
        k = torch.randn(len(slots), groups, spec.head_dim, generator=generator)
        v = torch.randn(len(slots), groups, spec.value_dim, generator=generator)
        self.kv.store(slots, k, v)
        tokens = int(self.query_lens.sum())
        q = torch.randn(tokens, spec.num_heads, spec.head_dim, generator=generator)
        self.q = q.to(spec.dtype)

    def run(self, ops=triton, only=None):
        index = np.arange(len(self.rows)) if only is None else np.array(only)
        starts = np.cumsum(self.query_lens) - self.query_lens
        tokens = [np.arange(starts[i], starts[i] + self.query_lens[i]) for i in index]
        plan = ops.plan_attention(
            self.table, self.rows[index], self.query_lens[index], self.seq_lens[index], self.spec
        )
        return plan.run(self.q[torch.from_numpy(np.concatenate(tokens))], self.kv)

    def check(self, rtol=1e-4, atol=1e-5):
        torch.testing.assert_close(self.run(), self.run(reference), rtol=rtol, atol=atol)


MIXED = [(1, 1), (1, 200), (7, 7), (1, 65), (20, 90), (2, 64)]


@pytest.mark.parametrize("dim", [64, 80, 128])
@pytest.mark.parametrize("share", [1, 3, 4])
def test_decodes_and_chunks_match_the_reference(share, dim):
    Case(MIXED, make_spec(share=share, dim=dim)).check()


@pytest.mark.parametrize("layout", ["token", "page"])
@pytest.mark.parametrize("page", [1, 16])
@pytest.mark.parametrize("cache", [torch.float32, torch.bfloat16, torch.float16, torch.int8])
def test_every_form_of_cache_is_read(cache, page, layout):
    Case(MIXED, make_spec(groups=1), page, cache, layout).check()


@pytest.mark.parametrize("cache", [torch.float16, torch.int8])
def test_half_precision_attends_within_its_precision(cache):
    Case(MIXED, make_spec(dtype=torch.float16), cache=cache).check(4e-3, 4e-3)


def test_bfloat16_is_refused_where_the_interpreter_would_multiply_its_bits_as_integers():
    with pytest.raises(ValueError, match="no bfloat16 matrices: use float32"):
        Case([(1, 4)], make_spec(dtype=torch.bfloat16)).run()


def test_spans_are_merged_for_decodes_and_chunks():
    rows = [(1, 2 * SPAN_LENGTH + 3), (1, SPAN_LENGTH), (30, SPAN_LENGTH + 20), (1, 5)]
    Case(rows, make_spec(groups=1)).check()


def test_a_layer_that_no_kernel_reads_is_gathered():
    Case([(1, 40), (5, 30)], make_spec(), cache=FP8).check(rtol=0, atol=0)


def test_plain_tensors_and_narrow_values_are_read_with_another_scale():
    spec = make_spec(v_head_dim=40, softmax_scale=0.05)
    case = Case([(1, 40), (5, 30), (12, 30)], spec, page=1)
    case.kv = KVTensors(case.kv.k.elements.tensor[:, 0], case.kv.v.elements.tensor[:, 0])
    assert case.run().shape == (18, 6, 40)
    case.check()


lengths = st.tuples(st.integers(1, 30), st.integers(0, 60)).map(lambda t: (t[0], t[0] + t[1]))
decodes = st.integers(1, 300).map(lambda n: (1, n))


@settings(max_examples=8, deadline=None)
@given(st.lists(st.one_of(lengths, decodes), min_size=2, max_size=4), st.data())
def test_a_row_has_the_same_bits_alone_as_among_others(rows, data):
    case = Case(rows, make_spec(groups=1))
    i = data.draw(st.integers(0, len(rows) - 1))
    start = int(case.query_lens[:i].sum())
    together = case.run()[start : start + case.query_lens[i]]
    assert torch.equal(case.run(only=[i]), together)
    case.check()


@pytest.mark.parametrize("cuts", [(256, 300), (20, 25, 299, 300)])
def test_chunks_give_what_the_whole_prompt_gives(cuts):
    case = Case([(300, 300)], make_spec(groups=1))
    whole = case.run()
    for first, last in zip((0, *cuts), cuts):
        plan = triton.plan_attention(
            case.table, case.rows, np.array([last - first]), np.array([last]), case.spec
        )
        found = plan.run(case.q[first:last], case.kv)
        torch.testing.assert_close(found, whole[first:last], rtol=1e-5, atol=1e-6)


def test_a_row_with_nan_in_its_cache_harms_only_itself():
    case = Case([(1, 30), (1, 28), (4, 20), (1, 90), (30, 40)], make_spec())
    clean = case.run()
    slot = int(case.table[case.rows[1], 3])
    case.kv.k.elements.tensor[slot // 16, slot % 16] = float("nan")
    found = case.run()
    assert not found[1].isfinite().any()
    found[1] = clean[1]
    assert torch.equal(found, clean)


def test_the_row_table_is_read_while_planning_only():
    for cache in (torch.float32, FP8):
        case = Case([(1, 30), (3, 9)], make_spec(), cache=cache)
        plan = triton.plan_attention(
            case.table, case.rows, case.query_lens, case.seq_lens, case.spec
        )
        expected = case.run()
        case.table[:] = 0
        assert torch.equal(plan.run(case.q, case.kv), expected)


@pytest.mark.parametrize("lengths", [(0, 3), (4, 3)])
def test_contradicting_lengths_are_refused(lengths):
    queries, length = np.array([lengths], np.int32).T
    with pytest.raises(ValueError, match=f"row 0 has {lengths[0]} queries for {lengths[1]}"):
        triton.plan_attention(
            np.zeros((1, 8), np.int32), np.zeros(1, np.int32), queries, length, make_spec()
        )


def test_work_covers_every_span_and_every_query_once():
    tiles = Tiles.of(make_spec(share=3))
    query_lens, seq_lens = np.array([1, 5, 50, 1, 6], np.int32), np.array([600, 5, 300, 256, 9])
    table = np.arange(5 * 600, dtype=np.int32).reshape(5, 600)
    work = lay_out(table, np.arange(5), query_lens, seq_lens.astype(np.int32), 3, tiles)
    assert work.spans.tolist() == [[0, 0], [0, 1], [0, 2], [1, 0], [3, 0]]
    assert work.merges.tolist() == [[0, 0]]
    per_tile = tiles.extend_m // 3
    covered = [(row, q) for row, q in work.tiles.tolist()]
    expected = [(2, q) for q in range(0, 50, per_tile)] + [(4, 0)]
    assert sorted(covered) == expected
    first = work.rows[2, 3]
    assert work.slots[first : first + 300].tolist() == table[2, :300].tolist()
