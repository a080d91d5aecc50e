import gc
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from phloem.kernels import AttentionSpec, KVTensors
from phloem.kernels.cpu_backend import library
from phloem.kernels.cpu_backend.attention import AttentionPlanner, describe
from phloem.kernels.cpu_backend.team import Team
from phloem.kernels.torch_backend.attention import plan_attention as plan_in_torch

if not library.library_status().usable:
    pytest.skip(library.library_status().reason, allow_module_level=True)
LIBRARIES = {isa: library.load_library(isa) for isa in library.usable_instruction_sets()}

DTYPES = (torch.float32, torch.bfloat16, torch.int8)
BEST = next(iter(LIBRARIES))
F32 = np.float32


@pytest.fixture(scope="module")
def planners():
    with Team(LIBRARIES[BEST], 1) as one, Team(LIBRARIES[BEST], 2) as two:
        yield [AttentionPlanner(LIBRARIES[BEST], team) for team in (one, two)]


@dataclass(frozen=True)
class Plane:
    tensor: torch.Tensor


@dataclass(frozen=True)
class Part:
    elements: Plane
    scales: Plane | None


@dataclass(frozen=True)
class Layer:
    """Pages of tokens of heads, or of heads of tokens."""

    k: Part
    v: Part

    def store(self, slots, k, v):
        raise NotImplementedError

    def gather(self, slots, dtype):
        return dequantized(self.k, slots).to(dtype), dequantized(self.v, slots).to(dtype)


def dequantized(part, slots):
    """What the slots hold, exactly: [n, G, D] float64."""
    size = part.elements.tensor.shape[1]
    values = part.elements.tensor[slots // size, slots % size].double()
    if part.scales is None:
        return values
    return values * part.scales.tensor[slots // size, slots % size].double()


def plane(x, page_size, by_head):
    """A plane with the slots of `x` [S, G, D], with room around its rows."""
    pages = x.unflatten(0, (-1, page_size))
    order = (0, 2, 1, 3) if by_head else (0, 1, 2, 3)
    memory = torch.zeros([*pages.permute(order).shape[:3], x.shape[2] + 3], dtype=x.dtype)
    view = memory[..., 1 : 1 + x.shape[2]].permute(order)
    view.copy_(pages)
    return Plane(view)


def part(x, dtype, page_size, by_head):
    if dtype != torch.int8:
        return Part(plane(x.to(dtype), page_size, by_head), None)
    scales = x.abs().amax(-1, keepdim=True).clamp(min=2.0**-100) / 127
    values = (x / scales).round().to(torch.int8)
    return Part(plane(values, page_size, by_head), plane(scales, page_size, by_head))


class Case:
    """Rows of (queries, tokens), and how many first tokens all of them share.

    Their slots are shuffled, or where it is `in_line` follow one another but for one in so many.
    """

    def __init__(
        self,
        lengths,
        dtype=torch.float32,
        seed=0,
        heads=(4, 2),
        dims=(16, 16),
        page_size=16,
        by_head=False,
        shared=0,
        in_line=0,
    ):
        rng = np.random.default_rng(seed)
        generator = torch.Generator().manual_seed(seed)
        self.spec = AttentionSpec(
            *(*heads, dims[0], torch.float32, torch.device("cpu"), dims[1]),
        )
        self.query_lens = np.array([q for q, _ in lengths], np.int32)
        self.seq_lens = np.array([n for _, n in lengths], np.int32)
        self.rows = rng.permutation(len(lengths) + 2)[: len(lengths)].astype(np.int32)
        longest = int(self.seq_lens.max())
        self.table = np.full((len(lengths) + 2, longest + 5), 1, np.int32)
        pages = (int(self.seq_lens.sum() * 1.1) + longest) // page_size + 2
        free = np.arange(2, pages * page_size, dtype=np.int32)
        if in_line:
            free = np.delete(free, np.s_[in_line - 1 :: in_line])
            assert len(free) >= int(self.seq_lens.sum())
        else:
            rng.shuffle(free)
        common, free = free[:shared], free[shared:]
        for row, n in zip(self.rows, self.seq_lens.tolist()):
            own = max(0, n - shared)
            self.table[row, :n] = np.concatenate((common[:n], free[:own]))
            free = free[own:]
        shape = pages * page_size, heads[1]
        k, v = (torch.randn(*shape, d, generator=generator) for d in dims)
        # Slots of nobody: what is there must not matter.
        unused = torch.ones(shape[0], dtype=torch.bool)
        for row, n in zip(self.rows, self.seq_lens.tolist()):
            unused[torch.from_numpy(self.table[row, :n].astype(np.int64))] = False
        unused[0] = False
        k[unused] = v[unused] = float("nan") if dtype != torch.int8 else 1e30
        k[0] = v[0] = 0.0
        self.layer = Layer(*(part(x, dtype, page_size, by_head) for x in (k, v)))
        self.q = 2 * torch.randn(int(self.query_lens.sum()), heads[0], dims[0], generator=generator)

    def plan(self, planner, index=None):
        index = np.arange(len(self.rows)) if index is None else np.array(index)
        return planner.plan(
            self.table, self.rows[index], self.query_lens[index], self.seq_lens[index], self.spec
        )

    def tokens(self, row):
        start = int(self.query_lens[:row].sum())
        return slice(start, start + int(self.query_lens[row]))

    def expected(self):
        """By the definition, in float64, of what the cache holds."""
        out = torch.empty(*self.q.shape[:2], self.spec.value_dim, dtype=torch.float64)
        share = self.spec.num_heads // self.spec.num_kv_heads
        for i, (row, length) in enumerate(zip(self.rows, self.seq_lens.tolist())):
            slots = torch.from_numpy(self.table[row, :length].astype(np.int64))
            k, v = (
                dequantized(x, slots).repeat_interleave(share, 1)
                for x in (self.layer.k, self.layer.v)
            )
            q = self.q[self.tokens(i)].double()
            scores = torch.einsum("qhd,thd->hqt", q, k) * self.spec.scale
            positions = torch.arange(length - len(q), length)
            scores.masked_fill_(torch.arange(length) > positions[:, None], -torch.inf)
            out[self.tokens(i)] = torch.einsum("hqt,thd->qhd", scores.softmax(-1), v)
        return out


def assert_close(found, expected, dtype):
    if dtype == torch.int8:
        # A query's rounding moves scores by about their size / 250; a probability is rounded by
        # at most 1/510 of the largest of its block.
        error = (found.double() - expected).abs()
        assert error.max() < 0.12
        assert error.mean() < 0.012
    else:
        torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)


def assert_same_bits(a, b):
    assert torch.equal(a.view(torch.int32), b.view(torch.int32))


chunks = st.tuples(st.integers(1, 40), st.integers(0, 260)).map(lambda t: (t[0], t[0] + t[1]))
decodes = st.integers(1, 300).map(lambda n: (1, n))
prefills = st.integers(1, 80).map(lambda n: (n, n))
steps = st.lists(st.one_of(chunks, decodes, prefills), min_size=1, max_size=6)
shapes = st.fixed_dictionaries(
    {
        "heads": st.sampled_from([(1, 1), (3, 1), (4, 2), (9, 3), (16, 1), (5, 5)]),
        "dims": st.sampled_from([(64, 64), (80, 80), (16, 16), (7, 7), (33, 18), (1, 1), (20, 96)]),
        "page_size": st.sampled_from([1, 4, 16, 24, 64]),
        "by_head": st.booleans(),
        "shared": st.sampled_from([0, 0, 64, 150, 256, 280]),
        "in_line": st.sampled_from([0, 0, 70, 1000]),
    }
)


@settings(max_examples=120, deadline=None)
@given(steps, shapes, st.sampled_from(DTYPES), st.integers(0, 1), st.integers(0, 99))
def test_any_step_is_softmax_attention_of_what_the_cache_holds(
    planners, lengths, shape, dtype, threads, seed
):
    case = Case(lengths, dtype, seed, **shape)
    found = case.plan(planners[threads]).run(case.q, case.layer)
    assert found.shape == case.expected().shape
    assert_close(found, case.expected(), dtype)


@pytest.mark.parametrize("isa", LIBRARIES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dims", [(128, 128), (256, 256), (96, 96), (65, 65)])
def test_every_instruction_set_serves_large_heads(isa, dtype, dims):
    case = Case([(1, 300), (30, 90), (5, 70)], dtype, dims=dims, shared=64)
    with Team(LIBRARIES[isa], 2) as team:
        found = case.plan(AttentionPlanner(LIBRARIES[isa], team)).run(case.q, case.layer)
    assert_close(found, case.expected(), dtype)


@settings(max_examples=60, deadline=None)
@given(steps, shapes, st.sampled_from(DTYPES), st.integers(0, 99))
def test_a_rows_bits_are_the_same_alone_in_a_batch_and_with_any_threads(
    planners, lengths, shape, dtype, seed
):
    case = Case(lengths, dtype, seed, **shape)
    one, two = (case.plan(planner).run(case.q, case.layer) for planner in planners)
    assert_same_bits(one, two)
    for row in range(len(lengths)):
        tokens = case.tokens(row)
        alone = case.plan(planners[row % 2], [row]).run(case.q[tokens], case.layer)
        assert_same_bits(alone, one[tokens])


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 400),
    st.lists(st.integers(1, 399), max_size=5),
    shapes,
    st.sampled_from(DTYPES),
    st.integers(0, 1),
)
def test_a_prefill_has_the_same_bits_cut_into_any_chunks(
    planners, length, cuts, shape, dtype, threads
):
    case = Case([(length, length)], dtype, **shape)
    whole = case.plan(planners[0]).run(case.q, case.layer)
    ends = sorted({cut for cut in cuts if cut < length} | {length})
    for start, end in zip([0, *ends], ends):
        plan = planners[threads].plan(
            *(case.table, case.rows, np.array([end - start], np.int32)),
            *(np.array([end], np.int32), case.spec),
        )
        assert_same_bits(plan.run(case.q[start:end].clone(), case.layer), whole[start:end])


@pytest.mark.parametrize("dtype", DTYPES)
def test_sharing_blocks_changes_no_bits(planners, dtype):
    """Rows that branch off one another, beside the same tokens in slots of each row's own."""
    lengths = [(1, 530), (1, 515), (70, 600), (1, 128), (3, 300), (1, 530), (2, 67)]
    case = Case(lengths, dtype, heads=(9, 3), dims=(64, 64), shared=512)
    branch = case.table[case.rows]
    branch[5, 64 * 3 :] = branch[0, 64 * 3 :]
    branch[4, 64 : 64 + 128] = branch[2, 64 : 64 + 128] = branch[0, 64 * 6 : 64 * 8]
    case.table[case.rows] = branch
    together = [case.plan(planner).run(case.q, case.layer) for planner in planners]
    assert_same_bits(*together)
    assert_close(together[0], case.expected(), dtype)
    for row in range(len(lengths)):
        tokens = case.tokens(row)
        alone = case.plan(planners[0], [row]).run(case.q[tokens], case.layer)
        assert_same_bits(alone, together[0][tokens])


def test_a_large_batch_behind_a_prefix_is_cut_without_a_trace(planners):
    case = Case([(1, 320 + i) for i in range(40)] + [(33, 370)] * 3, shared=300, heads=(6, 1))
    one, two = (case.plan(planner).run(case.q, case.layer) for planner in planners)
    assert_same_bits(one, two)
    assert_close(one, case.expected(), torch.float32)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("heads", "dims"), [((9, 3), (64, 64)), ((8, 1), (80, 80)), ((4, 4), (128, 65))]
)
@pytest.mark.parametrize("last", [(300, 1060), (300, 790)])
def test_prompts_behind_a_long_prefix_have_the_bits_that_they_have_alone(
    planners, last, heads, dims, dtype
):
    """Tiles merge the spans of the prefix, unless a prompt begins within it, as the last may."""
    lengths = [(60, 870), (41, 830), (1, 800), (64, 896), last]
    case = Case(lengths, dtype, heads=heads, dims=dims, shared=768)
    one, two = (case.plan(planner).run(case.q, case.layer) for planner in planners)
    assert_same_bits(one, two)
    assert_close(one, case.expected(), dtype)
    for row in range(len(lengths)):
        tokens = case.tokens(row)
        alone = case.plan(planners[row % 2], [row]).run(case.q[tokens], case.layer)
        assert_same_bits(alone, one[tokens])


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_prompt_that_begins_within_what_it_shares_is_as_if_it_were_alone(planners, dtype):
    """Its first queries come before blocks that its tile reads for the others."""
    case = Case([(1, 1030), (900, 1030)], dtype, shared=1024)
    together = case.plan(planners[1]).run(case.q, case.layer)
    alone = case.plan(planners[0], [1]).run(case.q[case.tokens(1)], case.layer)
    assert_same_bits(alone, together[case.tokens(1)])
    assert_close(together, case.expected(), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [0.0, 1e-44])
def test_a_query_of_nothing_sees_all_alike_whoever_shares(planners, size, dtype):
    case = Case([(2, 129), (2, 130)], dtype, shared=128)
    case.q[0] = size
    together = case.plan(planners[1]).run(case.q, case.layer)
    alone = case.plan(planners[0], [0]).run(case.q[case.tokens(0)], case.layer)
    assert_same_bits(alone, together[case.tokens(0)])
    assert_close(together, case.expected(), dtype)


def fused(a, b, c):
    """a * b + c of float32 rounded once, but for ties that float64 hides."""
    return (np.float64(a) * np.float64(b) + np.float64(c)).astype(F32)


def exp2_of_model(x):
    """The exponential of `native/attention_kernel.h`."""
    x = np.maximum(F32(-125), x)
    n = np.rint(x).astype(F32)
    r = (x - n).astype(F32)
    p = np.full_like(r, F32(1.326472731e-3))
    for c in (9.671512991e-3, 5.550733581e-2, 2.402224243e-1, 6.931470037e-1, 1.0):
        p = fused(p, r, F32(c))
    return (p.astype(np.float64) * 2.0 ** n.astype(np.float64)).astype(F32)


def lanes_sum(p):
    """The sum of a block's probabilities: by vectors, then halves of the lanes."""
    x = np.zeros(16, F32)
    for vector in p.reshape(4, 16):
        x = (x + vector).astype(F32)
    while len(x) > 1:
        x = (x[: len(x) // 2] + x[len(x) // 2 :]).astype(F32)
    return x[0]


class RunningModel:
    """(m, l, acc), and the one formula by which another of the kind is merged into it."""

    def __init__(self, dim):
        self.m, self.l, self.acc = F32(-np.inf), F32(0), np.zeros(dim, F32)

    def merge(self, m, total, acc, unit=1):
        after = max(self.m, m)
        keep, add = exp2_of_model(np.array([self.m - after, m - after], F32))
        self.l = fused(self.l, keep, F32(total * add))
        self.acc = fused(acc, F32(add * F32(unit)), (self.acc * keep).astype(F32))
        self.m = after


def integer_model(q, k, k_scales, v, v_scales, scale):
    """One query of one head over int8 K and V `[n, D]`, step by step in float32."""
    step = F32(np.abs(q).max() / F32(127))
    bytes_of_q = np.rint((q / step).astype(F32)).astype(np.int64)
    query_scale = F32(step * F32(F32(scale) * F32(1.44269504)))
    total = RunningModel(v.shape[1])
    for span in range(0, len(k), 256):
        running = RunningModel(v.shape[1])
        for start in range(span, min(span + 256, len(k)), 64):
            block = slice(start, min(start + 64, len(k)))
            dots = (k[block].astype(np.int64) @ bytes_of_q).astype(F32)
            scores = (dots * k_scales[block]).astype(F32)
            m = F32(scores.max() * query_scale)
            p = exp2_of_model(fused(scores, query_scale, -m))
            weights = (p * v_scales[block]).astype(F32)
            inverse, unit = F32(F32(255) / weights.max()), F32(weights.max() / F32(255))
            u = np.rint(np.float64(weights) * inverse).astype(np.int64)
            acc = (u @ v[block].astype(np.int64)).astype(F32)
            running.merge(m, lanes_sum(np.pad(p, (0, 64 - len(p)))), acc, unit)
        total.merge(running.m, running.l, running.acc)
    return (total.acc / total.l).astype(F32)


@pytest.mark.parametrize("isa", [isa for isa in LIBRARIES if isa != "portable"])
def test_attention_to_an_int8_cache_is_the_integer_formula_bit_for_bit(isa):
    lengths = [(1, 1), (1, 64), (1, 300), (3, 70), (20, 530), (1, 17)]
    case = Case(lengths, torch.int8, heads=(6, 2), dims=(64, 64), shared=64)
    with Team(LIBRARIES[isa], 2) as team:
        found = case.plan(AttentionPlanner(LIBRARIES[isa], team)).run(case.q, case.layer)
    for row, (queries, length) in enumerate(lengths):
        slots = torch.from_numpy(case.table[case.rows[row], :length].astype(np.int64))
        arrays = [
            plane.tensor[slots // 16, slots % 16].numpy()
            for part in (case.layer.k, case.layer.v)
            for plane in (part.elements, part.scales)
        ]
        for token in {0, queries - 1}:
            seen = length - queries + token + 1
            for head in range(6):
                k, k_scales, v, v_scales = (x[:seen, head // 3] for x in arrays)
                index = case.tokens(row).start + token
                model = integer_model(
                    *(case.q[index, head].numpy(), k, k_scales[:, 0], v, v_scales[:, 0]),
                    case.spec.scale,
                )
                assert_same_bits(found[index, head], torch.from_numpy(model))


@pytest.mark.parametrize("dtype", DTYPES)
def test_adversarial_scores_stay_finite_and_right(planners, dtype):
    """Scores from -1e4 to 1e4: almost all weight is on one token, and some blocks have none."""
    case = Case([(1, 400), (40, 200)], dtype, dims=(64, 64))
    case.q *= 400
    found = case.plan(planners[1]).run(case.q, case.layer)
    if dtype == torch.int8:
        assert found.isfinite().all()
        assert found.abs().max() < 6
    else:
        torch.testing.assert_close(found.double(), case.expected(), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("which", ["k", "v", "q"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_shows_in_its_row_and_in_no_other(planners, dtype, which, bad):
    case = Case([(1, 200), (1, 200)], dtype, dims=(64, 64), heads=(2, 2))
    if which == "q":
        case.q[0, 0, 3] = bad
    else:
        slot = int(case.table[case.rows[0], 130])
        part = getattr(case.layer, which)
        if dtype == torch.int8:
            part.elements.tensor[slot // 16, slot % 16, 0] = 0
            part.scales.tensor[slot // 16, slot % 16, 0] = bad
        else:
            part.elements.tensor[slot // 16, slot % 16, 0, 3] = bad
            # An infinite score of the other sign is a probability of 0.
            case.q[0, 0, 3] = 1.0
    found = case.plan(planners[1]).run(case.q, case.layer)
    assert not found[0, 0].isfinite().all()
    assert found[1].isfinite().all()
    assert found[0, 1].isfinite().all()


def test_zeros_in_an_int8_cache_and_queries_are_zeros(planners):
    case = Case([(1, 100), (70, 70)], torch.int8)
    for x in (case.layer.k, case.layer.v):
        x.elements.tensor.zero_()
        x.scales.tensor.zero_()
    assert not case.plan(planners[0]).run(case.q * 0, case.layer).any()


def test_plain_tensors_and_strided_queries_are_read_where_they_are(planners):
    case = Case([(2, 40), (1, 9)], page_size=1)
    kv = KVTensors(case.layer.k.elements.tensor[:, 0], case.layer.v.elements.tensor[:, 0])
    fused_qkv = torch.cat((case.q, torch.full((3, 4, 16), torch.nan)), 1)
    found = case.plan(planners[0]).run(fused_qkv[:, :4], kv)
    assert_same_bits(found, case.plan(planners[0]).run(case.q, case.layer))
    odd = torch.cat((case.q, case.q), 2)[:, :, :16]
    assert_same_bits(found, case.plan(planners[0]).run(odd, case.layer))


def test_bfloat16_queries_give_bfloat16(planners):
    case = Case([(3, 50)])
    found = case.plan(planners[0]).run(case.q.bfloat16(), case.layer)
    assert found.dtype == torch.bfloat16
    expected = case.plan(planners[0]).run(case.q.bfloat16().float(), case.layer)
    assert torch.equal(found, expected.bfloat16())


@pytest.mark.parametrize("dtype", [torch.float16, torch.float8_e4m3fn])
def test_a_cache_that_is_not_native_is_served_by_the_reference(planners, dtype):
    case = Case([(1, 100), (5, 70), (1, 3)])
    k, v = (
        torch.randn(len(x.elements.tensor) * 16, 2, 16).to(dtype)
        for x in (case.layer.k, case.layer.v)
    )

    @dataclass(frozen=True)
    class Floats:
        def gather(self, slots, to):
            return k[slots].to(to), v[slots].to(to)

        def store(self, slots, k, v):
            raise NotImplementedError

    kv = Floats() if dtype == torch.float8_e4m3fn else KVTensors(k, v)
    assert describe(kv) is None
    plan = case.plan(planners[1])
    arguments = case.table.copy(), case.rows, case.query_lens, case.seq_lens, case.spec
    case.table[:] = 0
    expected = plan_in_torch(*arguments).run(case.q, kv)
    for _ in range(2):
        torch.testing.assert_close(plan.run(case.q, kv), expected)


def test_the_table_may_change_after_planning_and_two_plans_live_side_by_side(planners):
    case = Case([(1, 100), (30, 300)])
    expected = case.plan(planners[1]).run(case.q, case.layer)
    first, second = case.plan(planners[1]), case.plan(planners[1], [1])
    assert first.handle != second.handle
    case.table[:] = 0
    tokens = case.tokens(1)
    assert_same_bits(second.run(case.q[tokens], case.layer), expected[tokens])
    assert_same_bits(first.run(case.q, case.layer), expected)


def test_a_plan_that_is_dropped_serves_the_next_step(planners):
    case = Case([(1, 100)])
    first = case.plan(planners[0])
    handle = first.handle
    del first
    assert case.plan(planners[0]).handle == handle


def test_a_plan_that_goes_in_a_cycle_of_garbage_is_never_used_again(planners):
    case = Case([(1, 100), (1, 40)])
    expected = case.plan(planners[0]).run(case.q, case.layer)
    held = [case.plan(planners[0]) for _ in range(2)]
    # As a step's error holds it, whose traceback has the frame that holds the error.
    error = ValueError()
    error.held = (error, held)
    del held, error
    gc.collect()
    for _ in range(3):
        plan = case.plan(planners[0])
        assert plan._native.is_there
        assert_same_bits(plan.run(case.q, case.layer), expected)


def test_an_empty_step_gives_nothing(planners):
    case = Case([(1, 10)])
    plan = case.plan(planners[1], np.array([], np.int64))
    assert plan.run(case.q[:0], case.layer).shape == (0, 4, 16)


@pytest.mark.parametrize(("queries", "tokens"), [(0, 5), (6, 5)])
def test_a_row_without_queries_or_with_too_many_is_refused(planners, queries, tokens):
    case = Case([(1, 5), (1, 5)])
    case.query_lens[1], case.seq_lens[1] = queries, tokens
    with pytest.raises(ValueError, match=f"row 1 has {queries} queries for {tokens} tokens"):
        case.plan(planners[0])


def test_what_the_table_does_not_have_is_refused(planners):
    case = Case([(1, 5), (1, 5)])
    case.seq_lens[0] = 11
    with pytest.raises(ValueError, match="11 tokens, the row table room for 10"):
        case.plan(planners[0])
    case.seq_lens[0], case.rows[1] = 5, 4
    with pytest.raises(IndexError, match="not all of the row table, which has 4"):
        case.plan(planners[0])


def test_quantized_elements_without_scales_are_not_described():
    x = plane(torch.zeros(16, 1, 4, dtype=torch.int8), 4, False)
    assert describe(Layer(Part(x, None), Part(x, None))) is None
