"""Rows that share prefixes like leaves of a tree, in any order: nobody sees who reads along."""

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from phloem.kernels import AttentionSpec, KVTensors, get_ops
from phloem.kernels.cpu_backend.attention import AttentionPlanner
from phloem.kernels.cpu_backend.library import library_status, load_library
from phloem.kernels.cpu_backend.team import Team

STATUS = library_status()
pytestmark = pytest.mark.skipif(not STATUS.usable, reason=STATUS.reason)
BLOCK, MAX_TRUNK, MAX_BRANCH, ROWS = 64, 13, 6, 8
MAX_BLOCKS = MAX_TRUNK + MAX_BRANCH
SPEC = AttentionSpec(4, 2, 16, torch.float32, torch.device("cpu"))
NUM_SLOTS = 1 + ROWS * (MAX_BLOCKS + 1) * BLOCK


@pytest.fixture(scope="module")
def planner():
    library = load_library()
    with Team(library, 2) as team:
        yield AttentionPlanner(library, team)


trunks = st.sampled_from([0, 0, 4, 8, MAX_TRUNK])
"""How many blocks all rows share before they part."""
paths = st.lists(st.integers(0, 1), max_size=MAX_BRANCH)
"""Which way a row goes at each block; rows that went the same way so far share their slots."""
rows = st.tuples(paths, st.integers(1, BLOCK - 1), st.integers(1, 70))
"""A path, tokens that follow it and are the row's own, and how many tokens at most are new."""


def slots_of(steps, generator):
    """The table of slots, of which equal ways have the same."""
    free = generator.permutation(np.arange(1, NUM_SLOTS)).astype(np.int32)
    known = {}
    table = np.zeros((len(steps), (MAX_BLOCKS + 1) * BLOCK), np.int32)
    for row, (path, own, _) in enumerate(steps):
        for block in range(len(path)):
            way = tuple(path[: block + 1])
            if way not in known:
                known[way], free = free[:BLOCK], free[BLOCK:]
            table[row, block * BLOCK : (block + 1) * BLOCK] = known[way]
        begin = len(path) * BLOCK
        table[row, begin : begin + own], free = free[:own], free[own:]
    return table


@settings(max_examples=200, deadline=None)
@given(trunks, st.lists(rows, min_size=1, max_size=ROWS), st.integers(0, 99))
@example(0, [([0], 5, 1), ([0], 6, 1), ([1], 7, 1)], 0)
@example(0, [([0], 5, 1), ([0], 6, 1), ([1], 7, 1)], 1)
@example(MAX_TRUNK, [([0], 5, 70), ([0], 6, 70), ([1], 63, 60), ([], 63, 1), ([1], 7, 70)], 0)
@example(8, [([], 63, 63)] * ROWS, 0)
@example(8, [([], 5, 1), ([], 6, 300)], 0)
def test_a_row_reads_its_own_slots_whoever_shares_some_of_them(planner, trunk, steps, seed):
    steps = [([0] * trunk + path, own, new) for path, own, new in steps]
    table = slots_of(steps, np.random.default_rng(seed))
    generator = torch.Generator().manual_seed(seed)
    kv = KVTensors(*torch.randn(2, NUM_SLOTS, 2, 16, generator=generator))
    seq_lens = np.array([len(path) * BLOCK + own for path, own, _ in steps], np.int32)
    query_lens = np.minimum([new for _, _, new in steps], seq_lens).astype(np.int32)
    q = torch.randn(int(query_lens.sum()), 4, 16, generator=generator)

    def attend(planner, index):
        index = np.array(index, np.int32)
        queries = torch.cat([q.split(query_lens.tolist())[i] for i in index])
        plan = planner(table, index, query_lens[index], seq_lens[index], SPEC)
        return plan.run(queries, kv)

    everyone = range(len(steps))
    together = attend(planner.plan, everyone)
    assert torch.equal(together, torch.cat([attend(planner.plan, [i]) for i in everyone]))
    reference = attend(get_ops("torch").plan_attention, everyone)
    torch.testing.assert_close(together, reference, rtol=1e-4, atol=1e-5)
