import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from phloem.kernels import AttentionSpec, KVTensors, get_ops
from phloem.kernels.torch_backend import attention

HEADS, GROUPS, DIM, SLOTS, MAX_LEN = 4, 2, 8, 2000, 200
SPEC = AttentionSpec(HEADS, GROUPS, DIM, torch.float32, torch.device("cpu"))
ops = get_ops()


class Case:
    """Rows with scattered slots of their own; slots that nobody owns hold NaN, slot 0 zeros."""

    def __init__(self, lengths, seed=0):
        rng = np.random.default_rng(seed)
        generator = torch.Generator().manual_seed(seed)
        self.query_lens = np.array([q for q, _ in lengths], np.int32)
        self.seq_lens = np.array([n for _, n in lengths], np.int32)
        self.rows = rng.permutation(len(lengths) + 2)[: len(lengths)].astype(np.int32)
        self.table = np.full((len(lengths) + 2, MAX_LEN), SLOTS - 1, np.int32)
        free = rng.permutation(np.arange(1, SLOTS - 1)).astype(np.int32)
        self.k, self.v = torch.full((2, SLOTS, GROUPS, DIM), float("nan"))
        self.k[0] = self.v[0] = 0.0
        used = 0
        for row, n in zip(self.rows, self.seq_lens.tolist()):
            slots = free[used : used + n]
            self.table[row, :n] = slots
            for cache in (self.k, self.v):
                cache[torch.from_numpy(slots.astype(np.int64))] = torch.randn(
                    n, GROUPS, DIM, generator=generator
                )
            used += n
        self.q = torch.randn(int(self.query_lens.sum()), HEADS, DIM, generator=generator)

    def run(self, only=None):
        index = np.arange(len(self.rows)) if only is None else np.array(only)
        starts = np.cumsum(self.query_lens) - self.query_lens
        tokens = np.concatenate(
            [np.arange(starts[i], starts[i] + self.query_lens[i]) for i in index]
        )
        plan = ops.plan_attention(
            self.table, self.rows[index], self.query_lens[index], self.seq_lens[index], SPEC
        )
        return plan.run(self.q[torch.from_numpy(tokens)], KVTensors(self.k, self.v))

    def expected(self):
        out, token = [], 0
        for row, queries, length in zip(self.rows, self.query_lens, self.seq_lens):
            slots = torch.from_numpy(self.table[row, :length].astype(np.int64))
            for position in range(length - queries, length):
                seen = slots[: position + 1]
                heads = []
                for head in range(HEADS):
                    group = head // (HEADS // GROUPS)
                    scores = self.k[seen, group].double() @ self.q[token, head].double()
                    weights = torch.softmax(scores / DIM**0.5, 0)
                    heads.append(weights @ self.v[seen, group].double())
                out.append(torch.stack(heads))
                token += 1
        return torch.stack(out).float()


lengths = st.tuples(st.integers(1, 12), st.integers(0, 60)).map(lambda t: (t[0], t[0] + t[1]))
decodes = st.integers(1, 120).map(lambda n: (1, n))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.one_of(lengths, decodes), min_size=1, max_size=6), st.integers(0, 100))
def test_any_mix_of_chunks_and_decodes_equals_brute_force(rows, seed):
    case = Case(rows, seed)
    torch.testing.assert_close(case.run(), case.expected(), rtol=1e-4, atol=1e-5)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.one_of(lengths, decodes), min_size=2, max_size=6), st.data())
def test_a_row_gives_the_same_alone_as_among_others(rows, data):
    case = Case(rows)
    i = data.draw(st.integers(0, len(rows) - 1))
    start = int(case.query_lens[:i].sum())
    together = case.run()[start : start + case.query_lens[i]]
    torch.testing.assert_close(case.run(only=[i]), together, rtol=0, atol=1e-5)


def test_a_row_with_nan_in_its_cache_harms_only_itself():
    case = Case([(1, 30), (1, 28), (4, 20), (1, 90)])
    clean = case.run()
    case.k[int(case.table[case.rows[1], 3])] = float("nan")
    found = case.run()
    assert not torch.isfinite(found[1]).any()
    others = [0, 2, 3, 4, 5, 6]
    torch.testing.assert_close(found[others], clean[others], rtol=0, atol=1e-5)


def test_decodes_are_cut_into_groups_that_gather_little(monkeypatch):
    case = Case([(1, n) for n in (50, 48, 47, 30, 2, 1)])
    whole = case.run()
    row_bytes = 2 * GROUPS * DIM * 4
    monkeypatch.setattr(attention, "_GATHER_BYTES", 100 * row_bytes)
    gathered = []
    gather = KVTensors.gather
    monkeypatch.setattr(
        KVTensors, "gather", lambda kv, s, dtype: gathered.append(len(s)) or gather(kv, s, dtype)
    )
    torch.testing.assert_close(case.run(), whole, rtol=0, atol=1e-5)
    assert max(gathered) <= 100
    assert sum(gathered) < (50 + 48 + 47 + 30 + 40 + 40)


def test_a_long_chunk_behind_a_prefix_is_masked_in_blocks(monkeypatch):
    case = Case([(100, 170)])
    whole = case.run()
    monkeypatch.setattr(attention, "_QUERY_BLOCK", 16)
    torch.testing.assert_close(case.run(), whole, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(whole, case.expected(), rtol=1e-4, atol=1e-5)


def test_the_row_table_is_read_while_planning_only():
    case = Case([(1, 30), (3, 9)])
    plan = ops.plan_attention(case.table, case.rows, case.query_lens, case.seq_lens, SPEC)
    expected = case.run()
    case.table[:] = SLOTS - 1
    torch.testing.assert_close(
        plan.run(case.q, KVTensors(case.k, case.v)), expected, rtol=0, atol=0
    )


@pytest.mark.parametrize("lengths", [(0, 3), (4, 3)])
def test_contradicting_lengths_are_refused(lengths):
    queries, length = np.array([lengths], np.int32).T
    with pytest.raises(ValueError, match=f"row 0 has {lengths[0]} queries for {lengths[1]}"):
        ops.plan_attention(np.zeros((1, 8), np.int32), np.zeros(1, np.int32), queries, length, SPEC)


def test_uneven_head_groups_are_refused():
    with pytest.raises(ValueError, match="4 query heads"):
        AttentionSpec(4, 3, 8, torch.float32, torch.device("cpu"))


def test_bfloat16_attends_within_its_precision():
    case = Case([(1, 40), (5, 30), (1, 38)])
    spec = AttentionSpec(HEADS, GROUPS, DIM, torch.bfloat16, torch.device("cpu"))
    plan = ops.plan_attention(case.table, case.rows, case.query_lens, case.seq_lens, spec)
    found = plan.run(case.q.bfloat16(), KVTensors(case.k.bfloat16(), case.v.bfloat16()))
    torch.testing.assert_close(found.float(), case.expected(), rtol=0.05, atol=0.05)


def test_the_cache_may_be_of_another_dtype_than_the_queries():
    case = Case([(1, 40), (5, 30), (1, 38)])
    plan = ops.plan_attention(case.table, case.rows, case.query_lens, case.seq_lens, SPEC)
    found = plan.run(case.q, KVTensors(case.k.bfloat16(), case.v.bfloat16()))
    case.k, case.v = case.k.bfloat16().float(), case.v.bfloat16().float()
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, case.run(), rtol=0, atol=0)


def test_values_may_be_narrower_than_keys_and_the_scale_another():
    """As in multi-head latent attention, where values are a part of the keys."""
    case = Case([(1, 40), (5, 30), (4, 4), (1, 38)])
    spec = AttentionSpec(
        HEADS, GROUPS, DIM, torch.float32, torch.device("cpu"), v_head_dim=3, softmax_scale=0.1
    )
    plan = ops.plan_attention(case.table, case.rows, case.query_lens, case.seq_lens, spec)
    found = plan.run(case.q, KVTensors(case.k, case.v[..., :3].contiguous()))
    case.q *= 0.1 * DIM**0.5
    torch.testing.assert_close(found, case.expected()[..., :3], rtol=1e-4, atol=1e-5)
