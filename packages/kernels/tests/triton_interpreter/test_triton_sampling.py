import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from phloem.kernels import SamplingParameters, get_ops
from phloem.kernels.triton_backend.ops import TritonOps

triton, reference = TritonOps(), get_ops("torch")


def parameters(n, uniforms, temperature=1.0, top_k=-1, top_p=1.0, min_p=0.0):
    def full(value, dtype):
        return np.full(n, value, dtype) if np.isscalar(value) else np.array(value, dtype)

    return SamplingParameters(
        full(temperature, np.float32),
        full(top_k, np.int32),
        full(top_p, np.float32),
        full(min_p, np.float32),
        full(uniforms, np.float64),
    )


FILTERS = [
    (1.0, -1, 1.0, 0.0),
    (0.9, 40, 1.0, 0.0),
    (0.9, 900, 0.8, 0.0),
    (0.7, -1, 0.5, 0.0),
    (1.3, -1, 0.97, 0.0),
    (1.0, -1, 1.0, 0.2),
    (0.8, 50, 0.9, 0.05),
    (1.0, 1, 0.3, 0.0),
]


@pytest.mark.parametrize("filters", FILTERS, ids=str)
@pytest.mark.parametrize("vocab_size", [3, 5000])
def test_draws_are_those_of_the_reference(filters, vocab_size):
    rng = np.random.default_rng(3)
    logits = torch.from_numpy(rng.normal(0, 2, (2, vocab_size)).astype(np.float32))
    p = parameters(2, rng.random(2), *filters)
    assert triton.sample(logits, p).tolist() == reference.sample(logits, p).tolist()


tied_rows = st.lists(st.integers(-6, 6).map(lambda i: i / 2), min_size=2, max_size=12)


@settings(max_examples=6, deadline=None)
@given(
    tied_rows,
    st.sampled_from([-1, 1, 2, 3, 7, 500]),
    st.sampled_from([0.3, 0.61, 0.9, 1.0]),
    st.sampled_from([0.0, 0.03, 0.4]),
)
def test_ties_keep_the_lowest_ids(logits, top_k, top_p, min_p):
    uniforms = np.linspace(0.013, 0.987, 4)
    rows = torch.tensor([logits], dtype=torch.float32).repeat(4, 1)
    p = parameters(4, uniforms, 1.0, top_k, top_p, min_p)
    assert triton.sample(rows, p).tolist() == reference.sample(rows, p).tolist()


def test_rows_with_different_filters_draw_the_same_alone_as_together():
    rng = np.random.default_rng(4)
    logits = torch.from_numpy(rng.normal(0, 2, (len(FILTERS), 700)).astype(np.float32))
    uniforms = rng.random(len(FILTERS))
    columns = [np.array(column) for column in zip(*FILTERS)]
    together = triton.sample(logits, parameters(len(FILTERS), uniforms, *columns)).tolist()
    alone = [
        triton.sample(logits[i : i + 1], parameters(1, uniforms[i], *filters)).item()
        for i, filters in enumerate(FILTERS)
    ]
    assert (
        together
        == alone
        == reference.sample(logits, parameters(len(FILTERS), uniforms, *columns)).tolist()
    )


def test_forbidden_tokens_are_never_drawn_whatever_the_number():
    inf = float("inf")
    logits = torch.tensor([[-inf, 0.0, -inf, 1.0, -inf]]).repeat(4, 1)
    uniforms = np.array([0.0, 0.2, 0.5, 1 - 2**-53])
    for filters in ({}, {"top_k": 4, "top_p": 0.999}):
        assert set(triton.sample(logits, parameters(4, uniforms, **filters)).tolist()) <= {1, 3}


def test_zeros_of_either_sign_are_equal():
    logits = torch.tensor([[-0.0, -0.0, 0.0, -1.0]])
    assert triton.greedy(logits).tolist() == [0]
    assert triton.sample(logits, parameters(1, 0.5, top_k=1)).tolist() == [0]
    assert triton.sample(logits, parameters(1, 0.9, top_k=2)).tolist() == [1]


def test_equal_tokens_far_apart_are_counted_together():
    logits = torch.zeros(2, 9000)
    uniforms = np.array([0.5, 1 - 1e-9])
    for filters in ({"top_k": 5000}, {"top_p": 0.75}):
        p = parameters(2, uniforms, **filters)
        assert triton.sample(logits, p).tolist() == reference.sample(logits, p).tolist()


def test_the_tail_of_a_large_vocabulary_is_not_rounded_away():
    logits = torch.full((1, 200_000), -20.0)
    logits[0, 0] = 0.0
    tail = 199_999 * np.exp(-20.0) / (1 + 199_999 * np.exp(-20.0))
    token = triton.sample(logits, parameters(1, 1 - tail / 2)).item()
    assert token == pytest.approx(100_000, rel=0.01)


def test_a_vocabulary_whose_sums_could_overflow_is_refused():
    with pytest.raises(ValueError, match="vocabulary of 1048577 is too large"):
        triton.sample(torch.empty(1, (1 << 20) + 1), parameters(1, 0.5))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("vocab_size", [1, 100, 9000])
def test_the_likeliest_is_the_lowest_of_the_largest(dtype, vocab_size):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randint(-50, 50, (5, vocab_size), generator=generator).to(dtype)
    logits[4] = float("-inf")
    lowest = [row.index(max(row)) for row in logits.tolist()]
    assert triton.greedy(logits).tolist() == lowest


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_a_row_of_nan_gets_an_id_of_the_vocabulary_and_harms_no_other():
    logits = torch.randn(3, 5000, generator=torch.Generator().manual_seed(0))
    clean = triton.greedy(logits).tolist()
    logits[1] = float("nan")
    found = triton.greedy(logits).tolist()
    drawn = triton.sample(logits, parameters(3, 0.5, top_p=0.9)).tolist()
    assert found[::2] == clean[::2]
    assert 0 <= found[1] < 5000
    assert 0 <= drawn[1] < 5000


@settings(max_examples=10, deadline=None)
@given(st.integers(1, 100) | st.integers(1020, 1060), st.integers(0, 1000))
def test_a_bitmask_forbids_exactly_the_tokens_without_a_bit(vocab_size, seed):
    rng = np.random.default_rng(seed)
    allowed = rng.random((2, vocab_size)) < 0.5
    padded = np.zeros((2, -(-vocab_size // 32) * 32), np.uint8)
    padded[:, :vocab_size] = allowed
    bits = np.packbits(padded, axis=1, bitorder="little").view("<i4")
    logits = torch.zeros(4, vocab_size)
    triton.apply_token_bitmask(logits, np.array([3, 1]), bits)
    assert np.array_equal((logits[[3, 1]] == 0).numpy(), allowed)
    assert not logits[[0, 2]].any()


def test_a_bitmask_of_another_vocabulary_is_refused():
    with pytest.raises(ValueError, match=r"vocabulary of 65 need \(1, 3\)"):
        triton.apply_token_bitmask(torch.zeros(1, 65), np.array([0]), np.zeros((1, 2), np.int32))
