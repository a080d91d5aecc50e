import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from phloem.kernels import Penalties, SamplingParameters, get_ops
from phloem.kernels.cpu_backend.library import library_status, load_library
from phloem.kernels.cpu_backend.sampling import Sampling
from phloem.kernels.cpu_backend.team import Team


@pytest.fixture(scope="module", params=["torch", "cpu"])
def ops(request):
    """What samples: the reference, and the native library with two threads."""
    if request.param == "torch":
        yield get_ops()
        return
    status = library_status()
    if not status.usable:
        pytest.skip(status.reason)
    library = load_library()
    with Team(library, 2) as team:
        yield Sampling(library, team)


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


def filtered(logits, temperature, top_k, top_p, min_p):
    """What the definition gives, step by step in float64: the distribution, and how far the nearest
    token is from being kept or dropped otherwise."""
    margin = 1.0
    scaled = np.asarray(logits, np.float64) / np.float32(temperature)
    probs = np.exp(scaled - scaled.max())
    probs /= probs.sum()
    order = np.argsort(-probs, kind="stable")
    if 0 < top_k < len(probs):
        probs[order[top_k:]] = 0.0
        probs /= probs.sum()
    if top_p < 1.0:
        before = np.cumsum(probs[order]) - probs[order]
        margin = np.abs(before - top_p).min()
        probs[order[before >= top_p]] = 0.0
        probs /= probs.sum()
    edge = min_p * probs.max()
    if 0.0 < min_p < 1.0:
        margin = min(margin, np.abs(probs - edge).min())
    probs[probs < edge * (1 - 1e-6)] = 0.0
    return probs / probs.sum(), margin


logit_rows = st.lists(st.integers(-12, 12).map(lambda i: i / 2), min_size=2, max_size=12)


@settings(max_examples=300, deadline=None)
@given(
    logit_rows,
    st.sampled_from([0.1, 0.5, 1.0, 1.7]),
    st.sampled_from([-1, 1, 2, 3, 7, 500]),
    st.sampled_from([0.05, 0.3, 0.61, 0.9, 1.0]),
    st.sampled_from([0.0, 0.03, 0.4, 1.0]),
    st.floats(0, 1, exclude_max=True),
)
def test_a_draw_follows_the_definition(ops, logits, temperature, top_k, top_p, min_p, u):
    probs, margin = filtered(logits, temperature, top_k, top_p, min_p)
    cdf = np.cumsum(probs)
    assume(min(margin, np.abs(cdf - u).min()) > 1e-6)
    p = parameters(1, u, temperature, top_k, top_p, min_p)
    token = int(ops.sample(torch.tensor([logits], dtype=torch.float32), p)[0])
    assert token == int(np.searchsorted(cdf, u, side="right"))


@pytest.mark.parametrize(
    ("top_k", "top_p", "min_p"),
    [
        (-1, 1.0, 0.0),
        (40, 1.0, 0.0),
        (900, 0.8, 0.0),
        (-1, 0.5, 0.0),
        (-1, 0.97, 0.0),
        (-1, 1, 0.2),
    ],
)
def test_a_large_vocabulary_follows_the_definition_too(ops, top_k, top_p, min_p):
    rng = np.random.default_rng(3)
    logits = rng.normal(0, 1, (6, 3000)).astype(np.float32)
    uniforms = rng.random(6)
    found = ops.sample(
        torch.from_numpy(logits), parameters(6, uniforms, 0.9, top_k, top_p, min_p)
    ).tolist()
    for row, u, token in zip(logits, uniforms, found):
        cdf = np.cumsum(filtered(row, 0.9, top_k, top_p, min_p)[0])
        # Rounding may keep or drop one token at an edge, and so shift the sums by its probability.
        assert cdf[token] > u - 1e-3
        assert (cdf[token - 1] if token else 0.0) <= u + 1e-3


def test_draws_have_the_frequencies_of_the_distribution(ops):
    rng = np.random.default_rng(5)
    logits = np.array([0.0, 1.0, 2.0, 0.5, -1.0, 1.5], np.float32)
    n = 20000
    p = parameters(n, rng.random(n), 1.3, top_k=5, top_p=0.95)
    ids = ops.sample(torch.from_numpy(np.tile(logits, (n, 1))), p).numpy()
    expected = filtered(logits, 1.3, 5, 0.95, 0.0)[0] * n
    counts = np.bincount(ids, minlength=6)
    kept = expected > 0
    assert not counts[~kept].any()
    # The 99.99 % quantile of chi-square with 5 degrees of freedom.
    assert ((counts[kept] - expected[kept]) ** 2 / expected[kept]).sum() < 25.7


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 5), min_size=2, max_size=8), st.integers(0, 1000))
def test_a_row_draws_the_same_alone_as_among_others(ops, kinds, seed):
    choices = [(1.0, -1, 1.0, 0.0), (0.7, 3, 1.0, 0.0), (1.2, 300, 0.9, 0.0)]
    choices += [(1.0, -1, 0.9, 0.0), (1.0, -1, 0.999, 0.1), (1.5, -1, 1.0, 0.3)]
    rng = np.random.default_rng(seed)
    logits = torch.from_numpy(np.round(rng.normal(0, 2, (len(kinds), 700)), 1).astype(np.float32))
    uniforms = rng.random(len(kinds))
    columns = [np.array(c) for c in zip(*(choices[k] for k in kinds))]
    together = ops.sample(logits, parameters(len(kinds), uniforms, *columns)).tolist()
    alone = [
        int(ops.sample(logits[i : i + 1], parameters(1, uniforms[i], *choices[k]))[0])
        for i, k in enumerate(kinds)
    ]
    assert together == alone


def test_equal_logits_keep_the_lowest_ids(ops):
    logits = torch.zeros(1, 10)
    for u, token in ((0.0, 0), (0.34, 1), (0.999, 2)):
        assert ops.sample(logits, parameters(1, u, top_k=3)).tolist() == [token]
    assert ops.greedy(torch.tensor([[1.0, 3.0, 3.0], [2.0, 2.0, 0.0]])).tolist() == [1, 0]


def test_forbidden_tokens_are_never_drawn_whatever_the_number(ops):
    logits = torch.tensor([[float("-inf"), 0.0, float("-inf"), 1.0, float("-inf")]])
    for u in (0.0, 0.2, 0.5, 1 - 2**-53):
        assert ops.sample(logits, parameters(1, u)).item() in (1, 3)


def test_the_tail_of_a_large_vocabulary_is_not_rounded_away(ops):
    logits = torch.full((1, 200_000), -20.0)
    logits[0, 0] = 0.0
    tail = 199_999 * np.exp(-20.0) / (1 + 199_999 * np.exp(-20.0))
    token = ops.sample(logits, parameters(1, 1 - tail / 2)).item()
    assert token == pytest.approx(100_000, rel=0.01)


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 100), st.integers(0, 1000))
def test_a_bitmask_forbids_exactly_the_tokens_without_a_bit(ops, vocab_size, seed):
    rng = np.random.default_rng(seed)
    allowed = rng.random((2, vocab_size)) < 0.5
    words = -(-vocab_size // 32)
    padded = np.zeros((2, words * 32), np.uint8)
    padded[:, :vocab_size] = allowed
    bits = np.packbits(padded, axis=1, bitorder="little").view("<i4")
    logits = torch.zeros(4, vocab_size)
    ops.apply_token_bitmask(logits, np.array([3, 1]), bits)
    assert np.array_equal((logits[[3, 1]] == 0).numpy(), allowed)
    assert not logits[[0, 2]].any()


def test_a_bitmask_of_another_vocabulary_is_refused(ops):
    with pytest.raises(ValueError, match=r"vocabulary of 65 need \(1, 3\)"):
        ops.apply_token_bitmask(torch.zeros(1, 65), np.array([0]), np.zeros((1, 2), np.int32))


def test_penalties_change_only_seen_tokens_by_the_published_formulas(ops):
    logits = torch.tensor([[2.0, -2.0, 1.0, 0.5], [1.0, 1.0, 1.0, 1.0]])

    def floats(*values):
        return np.array(values, np.float32)

    ops.apply_penalties(
        logits,
        Penalties(
            rows=np.array([0, 0, 1, 1]),
            ids=np.array([0, 1, 2, 3]),
            output_counts=floats(1, 0, 3, 0),
            repetition=floats(1.5, 1.5, 1.0, 1.0),
            frequency=floats(0.0, 0.0, 0.5, 0.5),
            presence=floats(0.0, 0.0, 0.25, 0.25),
        ),
    )
    expected = torch.tensor([[2.0 / 1.5, -3.0, 1.0, 0.5], [1.0, 1.0, 1 - 1.5 - 0.25, 1.0]])
    torch.testing.assert_close(logits, expected)


def test_logprobs_are_of_the_softmax_and_the_likeliest_come_first(ops):
    logits = torch.randn(5, 30, generator=torch.Generator().manual_seed(1))
    ids = torch.tensor([3, 0, 29, 7, 7])
    chosen, top_ids, top = ops.token_logprobs(logits, ids, 4)
    expected = logits.double() - torch.logsumexp(logits.double(), -1, keepdim=True)
    torch.testing.assert_close(chosen.double(), expected[torch.arange(5), ids])
    assert torch.equal(top_ids, expected.argsort(-1, descending=True)[:, :4])
    torch.testing.assert_close(top.double(), expected.gather(-1, top_ids))
    assert ops.token_logprobs(logits, ids, 0).top_ids.shape == (5, 0)
