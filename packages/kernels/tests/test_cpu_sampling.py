"""What only the native library promises of sampling; what every backend does is in
`test_kernels_sampling.py`."""

import ctypes

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from phloem.kernels import Penalties, SamplingParameters, get_ops
from phloem.kernels.cpu_backend.library import library_status, load_library
from phloem.kernels.cpu_backend.sampling import Sampling
from phloem.kernels.cpu_backend.team import Team

SIZES = (1, 2, 15, 17, 700, 1024, 1025, 8192, 8193, 20011)
"""Around a vector, a span, and what one task does."""
FILTERS = (
    (1.0, -1, 1.0, 0.0),
    (0.7, 40, 1.0, 0.0),
    (1.3, 3000, 1.0, 0.0),
    (1.0, 50, 0.9, 0.02),
    (0.8, -1, 0.9, 0.0),
    (2.0, -1, 0.99, 0.0),
    (1.0, -1, 0.9, 0.001),
    (1.0, -1, 1.0, 0.05),
)
"""Temperature, top_k, top_p, min_p."""


@pytest.fixture(scope="module")
def library():
    status = library_status()
    if not status.usable:
        pytest.skip(status.reason)
    return load_library()


@pytest.fixture(scope="module")
def sampling(library):
    with Team(library, 2) as team:
        yield Sampling(library, team)


def parameters(uniforms, *filters):
    """Filters for all rows, or a tuple of them for each row."""
    columns = np.broadcast_to(np.array(filters, np.float64), (len(uniforms), 4)).T
    dtypes = (np.float32, np.int32, np.float32, np.float32)
    return SamplingParameters(
        *(column.astype(dtype) for column, dtype in zip(columns, dtypes)), np.asarray(uniforms)
    )


def rows_of_logits(n, vocab_size, seed, decimals=1):
    """Rounded, so that many are equal; a few are likely."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 2, (n, vocab_size))
    logits[:, rng.integers(0, vocab_size, 20)] += rng.exponential(4, 20)
    return torch.from_numpy(np.round(logits, decimals).astype(np.float32))


def kept_weights(logits, temperature, top_k, top_p, min_p):
    """The definition in float64: unnormalised weights of what the filters keep."""
    scaled = logits.astype(np.float64) / np.float32(temperature)
    weights = np.exp(scaled - scaled.max())
    order = np.argsort(-logits, kind="stable")
    if 0 < top_k < len(weights):
        weights[order[int(top_k) :]] = 0.0
    if top_p < 1.0:
        before = np.cumsum(weights[order]) - weights[order]
        weights[order[before >= np.float32(top_p) * weights.sum()]] = 0.0
    weights[weights < np.float32(min_p) * (1 - 1e-6)] = 0.0
    return weights


@pytest.mark.parametrize("filters", FILTERS, ids=str)
@pytest.mark.parametrize("vocab_size", [700, 20011])
def test_a_draw_is_where_the_definition_says_up_to_rounding(sampling, filters, vocab_size):
    logits = rows_of_logits(20, vocab_size, 1)
    uniforms = np.random.default_rng(2).random(20)
    uniforms[:2] = 0.0, 1 - 2**-53
    ids = sampling.sample(logits, parameters(uniforms, *filters)).tolist()
    for row, u, token in zip(logits.numpy(), uniforms, ids):
        weights = kept_weights(row, *filters)
        cdf = np.cumsum(weights) / weights.sum()
        # Weights are float32; rounding may also move the edge of a nucleus by a token or so.
        slack = 2e-6 if filters[2] == 1.0 else 2 * weights[weights > 0].min() / weights.sum() + 2e-6
        assert cdf[token] > u - slack
        assert cdf[token] - weights[token] / weights.sum() <= u + slack
        assert weights[token] > 0 or slack > 1e-5


@pytest.mark.parametrize("filters", FILTERS, ids=str)
def test_draws_are_those_of_the_reference_but_for_rounding(sampling, filters):
    logits = rows_of_logits(200, 5000, 3, decimals=3)
    p = parameters(np.random.default_rng(4).random(200), *filters)
    found, expected = sampling.sample(logits, p), get_ops("torch").sample(logits, p)
    # The reference sums float32 probabilities that were rounded otherwise.
    assert (found != expected).sum() <= 2


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 40), st.sampled_from(SIZES), st.integers(0, 1000))
def test_a_row_has_the_same_bits_alone_and_with_any_threads(library, rows, vocab_size, seed):
    rng = np.random.default_rng(seed)
    logits = rows_of_logits(rows, vocab_size, seed)
    uniforms = rng.random(rows)
    filters = [FILTERS[i] for i in rng.integers(0, len(FILTERS), rows)]
    ids = torch.from_numpy(rng.integers(0, vocab_size, rows))

    def results(threads, part):
        with Team(library, threads) as team:
            s, p = Sampling(library, team), parameters(uniforms[part], *filters[part])
            logprobs = s.token_logprobs(logits[part], ids[part], 5)
            return [s.greedy(logits[part]), s.sample(logits[part], p), *logprobs]

    expected = results(1, slice(None))
    alone = [results(2, slice(i, i + 1)) for i in range(rows)]
    for found in (results(3, slice(None)), map(torch.cat, zip(*alone))):
        assert all(torch.equal(a, b) for a, b in zip(expected, found))


@pytest.mark.parametrize("vocab_size", SIZES)
def test_argmax_is_the_lowest_of_the_largest_and_says_what_is_not_finite(library, vocab_size):
    rng = np.random.default_rng(vocab_size)
    logits = np.round(rng.normal(0, 1, (40, vocab_size)), 1).astype(np.float32)
    expected = logits.argmax(-1)
    finite = np.ones(40, np.bool_)
    for row, value in ((3, np.nan), (4, -np.inf), (39, np.nan)):
        # In the place of one that is not the largest, where there is one.
        place = rng.integers(0, vocab_size)
        if place != expected[row]:
            logits[row, place] = value
            finite[row] = False
    logits[7], expected[7], finite[7] = -np.inf, 0, False
    logits[8], expected[8], finite[8] = np.nan, 0, False
    logits[9, vocab_size - 1] = np.inf
    expected[9], finite[9] = vocab_size - 1, False
    with Team(library, 2) as team:
        memory = np.empty(library.function(
            "phloem_sampling_workspace", ctypes.c_int, ctypes.c_int, restype=ctypes.c_size_t
        )(40, vocab_size), np.uint8)  # fmt: skip
        ids, flags = np.full(40, -1, np.int64), np.zeros(40, np.bool_)
        pointer = ctypes.c_void_p
        library.function(
            *("phloem_argmax", pointer, pointer, ctypes.c_int64, ctypes.c_int, ctypes.c_int),
            *(pointer, pointer, pointer),
        )(
            *(team.handle, logits.ctypes.data, vocab_size, 40, vocab_size),
            *(memory.ctypes.data, ids.ctypes.data, flags.ctypes.data),
        )
    assert ids.tolist() == expected.tolist()
    assert flags.tolist() == finite.tolist()


@pytest.mark.parametrize("top", [0, 1, 5, 64, 5000, 20011])
def test_logprobs_are_ordered_and_equal_ones_have_the_lower_ids_first(sampling, top):
    logits = rows_of_logits(3, 20011, 6)
    logits[1, ::2] = float("-inf")
    ids = torch.tensor([0, 1, 20010])
    found = sampling.token_logprobs(logits, ids, top)
    exact = logits.double().log_softmax(-1)
    assert torch.equal(
        found.top_ids, logits.sort(dim=-1, descending=True, stable=True).indices[:, :top]
    )
    torch.testing.assert_close(
        found.top_logprobs.double(), exact.gather(-1, found.top_ids), rtol=1e-6, atol=1e-6
    )
    torch.testing.assert_close(
        found.chosen.double(), exact[torch.arange(3), ids], rtol=1e-6, atol=1e-6
    )


def test_logprobs_of_a_row_without_a_distribution_are_nan_and_of_others_are_not(sampling):
    logits = torch.zeros(4, 3000)
    logits[0, 7], logits[1, 7], logits[2] = float("nan"), float("inf"), float("-inf")
    found = sampling.token_logprobs(logits, torch.zeros(4, dtype=torch.int64), 3)
    assert found.chosen.isnan().tolist() == [True, True, True, False]
    assert found.top_logprobs.isnan().all(-1).tolist() == [True, True, True, False]


def test_a_row_that_is_not_finite_draws_some_token_and_leaves_others_alone(sampling):
    logits = rows_of_logits(4, 3000, 7)
    logits[0, 5], logits[1], logits[2] = float("nan"), float("nan"), float("-inf")
    for filters in FILTERS:
        together = sampling.sample(logits, parameters(np.full(4, 0.5), *filters))
        assert ((together >= 0) & (together < 3000)).all()
        assert together[3] == sampling.sample(logits[3:], parameters([0.5], *filters))[0]


def test_of_equally_likely_tokens_a_filter_keeps_the_lower_ids(sampling):
    logits = torch.zeros(1, 20000)
    logits[0, 100] = float("-inf")
    last = 1 - 2**-53
    for filters, expected in (
        ((1.0, 9000, 1.0, 0.0), 9000),
        ((1.0, 3, 1.0, 0.0), 2),
        ((1.0, -1, 0.5, 0.0), 10000),
        ((1.0, 9000, 0.5, 0.0), 4500),
        ((1.0, -1, 1.0, 1.0), 19999),
    ):
        assert sampling.sample(logits, parameters([last], *filters)).tolist() == [expected]


@pytest.mark.parametrize("filters", FILTERS, ids=str)
def test_forbidden_tokens_are_never_drawn_from_a_large_vocabulary(sampling, filters):
    logits = torch.full((9, 20011), float("-inf"))
    logits[:, 8191::4000] = 1.0
    logits[:, 11] = -1e30
    uniforms = np.append(np.linspace(0, 1, 8, endpoint=False), 1 - 2**-53)
    ids = sampling.sample(logits, parameters(uniforms, *filters))
    assert set(ids.tolist()) <= {8191, 12191, 16191}
    assert ids[0] == 8191


@pytest.mark.parametrize("temperature", [1e-38, 1e-6, 0.01])
def test_a_tiny_temperature_draws_the_largest(sampling, temperature):
    logits = rows_of_logits(5, 3000, 8)
    logits[torch.arange(5), torch.arange(5) * 700] = 3e4
    for filters in ((-1, 1.0, 0.0), (40, 1.0, 0.0), (-1, 0.9, 0.0)):
        ids = sampling.sample(logits, parameters(np.linspace(0, 0.999, 5), temperature, *filters))
        assert ids.tolist() == [0, 700, 1400, 2100, 2800]


def test_a_draw_by_the_filters_that_keep_one_token_is_the_argmax(sampling):
    logits = rows_of_logits(6, 9000, 9)
    expected = sampling.greedy(logits)
    for filters in ((1.0, 1, 1.0, 0.0), (1.0, -1, 1e-9, 0.0), (1.0, 50, 0.0, 0.0)):
        found = sampling.sample(logits, parameters(np.linspace(0, 0.999, 6), *filters))
        assert torch.equal(found, expected)


def test_rows_may_lie_apart(sampling):
    wide = rows_of_logits(5, 3000, 10)
    logits, dense = wide[:, 7:2900], wide[:, 7:2900].contiguous()
    p = parameters(np.linspace(0, 0.999, 5), 1.0, 50, 0.9, 0.0)
    ids = torch.arange(5)
    assert torch.equal(sampling.greedy(logits), sampling.greedy(dense))
    assert torch.equal(sampling.sample(logits, p), sampling.sample(dense, p))
    for a, b in zip(
        sampling.token_logprobs(logits, ids, 3), sampling.token_logprobs(dense, ids, 3)
    ):
        assert torch.equal(a, b)
    assert torch.equal(sampling.greedy(dense.T.contiguous().T), sampling.greedy(dense))


def test_edits_of_logits_have_the_bits_of_the_reference(sampling):
    rng = np.random.default_rng(11)
    wide = rows_of_logits(6, 3000, 11)
    logits = wide[:, 3:2900]
    expected = wide.clone()
    seen = rng.permutation(6 * 2897)[:5000]
    rows, ids = np.divmod(seen, 2897)

    def floats(low, high):
        return rng.uniform(low, high, 5000).astype(np.float32)

    penalties = Penalties(
        *(rows, ids, rng.integers(0, 3, 5000).astype(np.float32)),
        *(floats(0.5, 2), floats(-2, 2), floats(-2, 2)),
    )
    bits = rng.integers(-(2**31), 2**31, (3, 91)).astype(np.int32)
    bits[0, :50], bits[1, :50] = -1, 0
    for ops, target in ((sampling, logits), (get_ops("torch"), expected[:, 3:2900])):
        ops.apply_penalties(target, penalties)
        ops.apply_token_bitmask(target, np.array([4, 0, 5]), bits)
    assert torch.equal(wide, expected)


def test_no_rows_are_no_work(sampling):
    nothing = torch.empty(0, 100)
    assert sampling.greedy(nothing).shape == (0,)
    assert sampling.sample(nothing, parameters(np.empty(0), 1.0, 1, 1.0, 0.0)).shape == (0,)
    assert sampling.token_logprobs(nothing, torch.empty(0, dtype=torch.int64), 2).top_ids.shape == (
        0,
        2,
    )


def test_what_does_not_fit_the_logits_is_refused(sampling):
    logits = torch.zeros(2, 100)
    one = np.ones(1, np.float32)

    def penalty(row, token):
        return Penalties(np.array([row]), np.array([token]), one, one, one, one)

    with pytest.raises(ValueError, match=r"2 rows of logits need arrays of the shape \(2,\)"):
        sampling.sample(logits, parameters(np.zeros(3), 1.0, 1, 1.0, 0.0))
    for ids in ([0, 100], [-1, 0]):
        with pytest.raises(ValueError, match=r"token ids .* not all in \[0, 100\)"):
            sampling.token_logprobs(logits, torch.tensor(ids), 1)
    with pytest.raises(ValueError, match=r"rows .* not all in \[0, 2\)"):
        sampling.apply_penalties(logits, penalty(2, 0))
    with pytest.raises(ValueError, match=r"token ids .* not all in \[0, 100\)"):
        sampling.apply_penalties(logits, penalty(0, 100))
    with pytest.raises(ValueError, match=r"rows .* not all in \[0, 2\)"):
        sampling.apply_token_bitmask(logits, np.array([2]), np.zeros((1, 4), np.int32))
    with pytest.raises(ValueError, match="use float32 with a contiguous last axis"):
        sampling.apply_penalties(logits.T, penalty(0, 0))
    with pytest.raises(ValueError, match="use float32"):
        sampling.apply_token_bitmask(logits.double(), np.array([1]), np.zeros((1, 4), np.int32))
