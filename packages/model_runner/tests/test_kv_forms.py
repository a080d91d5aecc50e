"""K and V in every form of `phloem.mem_pool.kv`: attention over them, and a model's answers."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from phloem.kernels import AttentionSpec, KVTensors, RopeConfig, cos_sin, get_ops
from phloem.kernels import inverse_frequencies as frequencies
from phloem.kernels.torch_backend import TorchOps
from phloem.mem_pool.kv import DTYPES, KVPool, KVShape
from phloem.model_runner import load_model
from phloem.scheduler import SamplingParams
from phloem.scheduler.sampling import MAX_TOP_LOGPROBS

CPU = torch.device("cpu")
HEADS = 4
ops = get_ops()
ATTENTION = {"float32": 0.0, "bfloat16": 2e-2, "float16": 2e-3, "int8": 4e-2, "fp8_e4m3": 0.25}
"""How far attention over random K and V of unit variance may be from that over a float32 pool."""
LOGPROBS = {"float32": 0.0, "bfloat16": 0.1, "float16": 0.02, "int8": 0.3, "fp8_e4m3": 2.0}
"""How far the tiny model's logprobs may; its weights are wide, and so are its errors."""


class Rows:
    """Rows of (queries, length) over scattered slots of one pool."""

    def __init__(self, lengths, page):
        self.query_lens, self.seq_lens = np.array(lengths, np.int32).T
        pages = -(-self.seq_lens // page)
        self.num_slots = page * (1 + int(pages.sum()))
        order = np.random.default_rng(0).permutation(int(pages.sum())) + 1
        self.table = np.zeros((len(lengths), int(pages.max()) * page), np.int32)
        for row, own in enumerate(np.split(order, np.cumsum(pages)[:-1])):
            slots = (own[:, None] * page + np.arange(page)).ravel()
            self.table[row, : len(slots)] = slots

    def plan(self, spec):
        rows = np.arange(len(self.seq_lens), dtype=np.int32)
        return ops.plan_attention(self.table, rows, self.query_lens, self.seq_lens, spec)

    def slots(self, only_queries=False):
        starts = self.seq_lens - self.query_lens if only_queries else 0 * self.seq_lens
        parts = [self.table[i, a:b] for i, (a, b) in enumerate(zip(starts, self.seq_lens))]
        return torch.from_numpy(np.concatenate(parts).astype(np.int64))


lengths = st.tuples(st.integers(1, 5), st.integers(0, 40)).map(lambda t: (t[0], t[0] + t[1]))
pools = {
    "page": st.sampled_from([1, 16, 64]),
    "layout": st.sampled_from(["token", "page"]),
    "name": st.sampled_from(sorted(DTYPES)),
}


@settings(max_examples=60, deadline=None)
@given(
    rows=st.one_of(st.just([(1, 1)]), st.lists(lengths, min_size=1, max_size=4)),
    dim=st.sampled_from([64, 80, 96, 128]),
    groups=st.sampled_from([1, 2, 4]),
    **pools,
)
def test_attention_over_any_form_is_that_over_what_it_holds(rows, dim, groups, page, layout, name):
    case = Rows(rows, page)
    shape = KVShape(1, groups, dim, DTYPES[name])
    pool = KVPool(case.num_slots, shape, page_size=page, layout=layout)
    slots = case.slots()
    generator = torch.Generator().manual_seed(len(slots))
    k, v = torch.randn(2, len(slots), groups, dim, generator=generator)
    q = torch.randn(int(case.query_lens.sum()), HEADS, dim, generator=generator)
    pool.store(0, slots, k, v)
    plan = case.plan(AttentionSpec(HEADS, groups, dim, torch.float32, CPU))
    found = plan.run(q, pool.layer(0))

    everything = torch.arange(case.num_slots)
    held = KVTensors(*pool.gather(0, everything))
    assert torch.equal(found, plan.run(q, held))
    exact = KVTensors(*torch.zeros(2, case.num_slots, groups, dim))
    exact.store(slots, k, v)
    assert (found - plan.run(q, exact)).abs().max() <= ATTENTION[name]


@settings(max_examples=20, deadline=None)
@given(rows=st.lists(lengths, min_size=1, max_size=3), **pools)
def test_a_step_reads_its_own_k_and_v_as_they_were_stored(rows, page, layout, name):
    """Rule 3 of the design: so a prompt that is computed equals one that is found in the cache."""
    case, dim, groups = Rows([(n, n) for _, n in rows], page), 16, 2
    pool = KVPool(
        case.num_slots, KVShape(1, groups, dim, DTYPES[name]), page_size=page, layout=layout
    )
    qkv = torch.randn(int(case.seq_lens.sum()), HEADS + 2 * groups, dim)
    q, k, v = qkv.split((HEADS, groups, groups), 1)
    positions = torch.from_numpy(np.concatenate([np.arange(n) for n in case.seq_lens]))
    angles = cos_sin(positions, frequencies(RopeConfig(), dim))
    ops.rotary_store_kv(q, k, v, angles, pool.layer(0), case.slots())
    plan = case.plan(AttentionSpec(HEADS, groups, dim, torch.float32, CPU))
    cold = plan.run(q, pool.layer(0))
    held = KVTensors(*pool.gather(0, torch.arange(case.num_slots)))
    assert torch.equal(cold, plan.run(q, held))
    torch.testing.assert_close(held.gather(case.slots(), torch.float32)[0], k, rtol=0.07, atol=0.2)


@settings(max_examples=30, deadline=None)
@given(rows=st.lists(lengths, min_size=1, max_size=3), **pools)
def test_latent_attention_equals_that_of_the_heads_it_stands_for(rows, page, layout, name):
    """MLA with the projections of the heads absorbed in the queries and the output."""
    latent_dim, rope_dim, nope_dim, value_dim = 24, 8, 10, 12
    case = Rows(rows, page)
    shape = KVShape(1, 1, latent_dim, DTYPES[name], rope_dim=rope_dim)
    pool = KVPool(case.num_slots, shape, page_size=page, layout=layout)
    slots, num_queries = case.slots(), int(case.query_lens.sum())
    pool.store(0, slots, torch.randn(len(slots), 1, latent_dim), torch.randn(len(slots), 1, 8))
    up_k = torch.randn(HEADS, latent_dim, nope_dim) / 5
    up_v = torch.randn(HEADS, latent_dim, value_dim) / 5
    q_nope = torch.randn(num_queries, HEADS, nope_dim)
    q_rope = torch.randn(num_queries, HEADS, rope_dim)
    scale = (nope_dim + rope_dim) ** -0.5

    keys, latents = pool.gather(0, torch.arange(case.num_slots))
    per_head = torch.einsum("sgl,hln->shn", latents, up_k)
    shared = keys[..., latent_dim:].expand(-1, HEADS, -1)
    whole = KVTensors(
        torch.cat((per_head, shared), -1), torch.einsum("sgl,hlv->shv", latents, up_v)
    )
    spec = AttentionSpec(HEADS, HEADS, nope_dim + rope_dim, torch.float32, CPU, value_dim)
    expected = case.plan(spec).run(torch.cat((q_nope, q_rope), -1), whole)

    absorbed = torch.cat((torch.einsum("thn,hln->thl", q_nope, up_k), q_rope), -1)
    spec = AttentionSpec(
        HEADS, 1, latent_dim + rope_dim, torch.float32, CPU, latent_dim, softmax_scale=scale
    )
    attended = case.plan(spec).run(absorbed, pool.layer(0))
    found = torch.einsum("thl,hlv->thv", attended, up_v)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


class ExactOps(TorchOps):
    """Sums in float64, so that a row's float32 results do not depend on the rows beside it.

    The sums of the reference do, in their last bit, and a K or V that lies between two numbers of
    an 8-bit form is then rounded to the one or to the other.
    """

    def prepare_linear(self, weight, bias=None, form="float", input_bits=8):
        return weight.double(), None if bias is None else bias.double()

    def linear(self, x, prepared):
        return torch.nn.functional.linear(x.double(), *prepared).to(x.dtype)

    def plan_attention(self, row_table, rows, query_lens, seq_lens, spec):
        wide = replace(spec, dtype=torch.float64)
        plan = super().plan_attention(row_table, rows, query_lens, seq_lens, wide)
        return ExactPlan(plan)


class ExactPlan:
    def __init__(self, plan):
        self._plan = plan

    def run(self, q, kv):
        return self._plan.run(q.double(), kv).to(q.dtype)


PROMPT = [(7 * i * i + i) % 256 for i in range(45)]
NEW_TOKENS = 12
GREEDY = SamplingParams(temperature=0.0, top_logprobs=0)


@pytest.fixture(scope="module")
def exact_model(tiny):
    return load_model(tiny.folder, ops=ExactOps())


def answer(driver, row, cuts, start=0):
    """Greedy tokens and their logprobs; the prompt from `start` on is computed in pieces."""
    for a, b in zip((start, *cuts), (*cuts, len(PROMPT))):
        result = driver.run((row, PROMPT[a:b], b), params=GREEDY)
    ids, logprobs = list(PROMPT), []
    for _ in range(NEW_TOKENS):
        ids.append(int(result.token_ids[0]))
        logprobs.append(float(result.logprobs.chosen[0]))
        result = driver.run((row, ids[-1:], len(ids)), params=GREEDY)
    return ids[len(PROMPT) :], logprobs


@pytest.mark.parametrize("name", DTYPES)
def test_a_prompt_in_pieces_is_answered_as_whole(drive, exact_model, name):
    driver = drive(exact_model, kv_dtype=DTYPES[name])
    ids, logprobs = answer(driver, 0, ())
    for row, cuts in enumerate([(1,), (20, 21, 44), range(1, 45), range(7, 45, 7)], 1):
        found, own = answer(driver, row, tuple(cuts))
        assert found == ids
        assert own == pytest.approx(logprobs, abs=1e-5)


@pytest.mark.parametrize("name", DTYPES)
def test_what_is_cached_is_continued_as_if_it_had_been_computed(drive, tiny_model, name):
    driver = drive(tiny_model, kv_dtype=DTYPES[name])
    cold = answer(driver, 0, ())
    driver.table[1, :40] = driver.table[0, :40]
    warm = answer(driver, 1, (), start=40)
    assert warm[0] == cold[0]
    assert warm[1] == pytest.approx(cold[1], abs=1e-4)


@pytest.mark.parametrize("name", DTYPES)
def test_logprobs_are_near_those_of_a_float32_cache(drive, exact_model, name):
    params = SamplingParams(temperature=0.0, top_logprobs=MAX_TOP_LOGPROBS)
    likeliest = [
        drive(exact_model, kv_dtype=dtype).run((0, PROMPT, len(PROMPT)), params=params).logprobs.top
        for dtype in (torch.float32, DTYPES[name])
    ]
    expected, found = (dict(zip(top.token_ids, top.logprobs)) for (top,) in likeliest)
    farthest = max(abs(found[i] - p) for i, p in list(expected.items())[:20])
    assert farthest <= LOGPROBS[name]
