import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from phloem.kernels import get_ops
from phloem.kernels.decoder import ComposedDecoder
from phloem.model_runner.sampler import (
    NOT_FINITE,
    Sampler,
    bits_of_rows,
    greedy,
    wants_greedy_only,
)
from phloem.scheduler import SamplingBatch, SamplingParams, TokenHistory, TokenMasks
from phloem.scheduler.randomness import uniform

VOCAB = 40
sampler = Sampler(get_ops())


def draw(
    logits, params, rows=None, newest=None, masks=None, suppressed=(), histories=(), positions=None
):
    """Sample; without `rows` every row of the batch has logits."""
    rows = np.arange(len(params)) if rows is None else np.array(rows)
    sampling = SamplingBatch.from_params(
        params,
        [p.seed or 0 for p in params],
        positions or [9] * len(params),
        suppressed,
        histories,
    )
    relayed = torch.tensor(newest if newest is not None else [0] * len(params))
    with torch.inference_mode():
        return sampler(torch.tensor(logits, dtype=torch.float32), rows, sampling, masks, relayed)


def history(index, prompt=(), output=(), pending=False):
    return TokenHistory(index, np.array(prompt, np.int32), np.array(output, np.int32), pending)


random_params = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.5, 1.0, 1.8]),
    top_k=st.sampled_from([-1, 1, 5, 30]),
    top_p=st.sampled_from([1.0, 0.9, 0.3]),
    min_p=st.sampled_from([0.0, 0.1]),
    repetition_penalty=st.sampled_from([1.0, 1.3]),
    frequency_penalty=st.sampled_from([0.0, 0.7]),
    seed=st.integers(0, 50),
    logit_bias=st.dictionaries(
        st.integers(0, VOCAB - 1), st.sampled_from([-100.0, 1.0]), max_size=3
    ),
    top_logprobs=st.sampled_from([None, 0, 4]),
)


@settings(max_examples=80, deadline=None)
@given(st.lists(random_params, min_size=2, max_size=6), st.integers(0, 1000))
def test_a_row_is_sampled_the_same_alone_as_in_any_batch(params, seed):
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 2, (len(params), VOCAB)).astype(np.float32)
    seen = [
        history(i, rng.integers(0, VOCAB, 6), rng.integers(0, VOCAB, 4)) for i in range(len(params))
    ]
    seen = [h for h, p in zip(seen, params) if p.has_penalties]
    together = draw(logits, params, histories=tuple(seen))
    for i, p in enumerate(params):
        own = tuple(history(0, h.prompt, h.output) for h in seen if h.index == i)
        alone = draw(logits[i : i + 1], [p], histories=own)
        assert alone.ids.tolist() == together.ids[i : i + 1].tolist()
        np.testing.assert_array_equal(alone.chosen_logprobs, together.chosen_logprobs[i : i + 1])


def test_a_seed_draws_the_same_in_every_batch_and_another_position_draws_anew():
    logits = np.random.default_rng(0).normal(0, 1, (2, VOCAB))
    a = SamplingParams(temperature=0.8, seed=42)
    outcomes = [draw(logits[:1], [a], positions=[n]).ids.item() for n in range(30)]
    assert len(set(outcomes)) > 5
    for n in range(30):
        other = SamplingParams(temperature=0.8, seed=1000 + n)
        found = draw(logits, [a, other], positions=[n, 7]).ids[0].item()
        assert found == outcomes[n]


def test_draws_over_seeds_follow_the_softmax():
    logits = np.array([0.0, 1.0, 2.0, 0.5])
    n = 4000
    params = [SamplingParams(temperature=0.7, seed=s) for s in range(n)]
    ids = draw(np.tile(logits, (n, 1)), params).ids.numpy()
    weights = np.exp(logits / 0.7)
    expected = weights / weights.sum() * n
    counts = np.bincount(ids, minlength=4)
    # The 99.99 % quantile of chi-square with 3 degrees of freedom.
    assert ((counts - expected) ** 2 / expected).sum() < 21.1
    cdf = np.cumsum(weights / weights.sum())
    numbers = uniform(np.arange(n), np.full(n, 9))
    assert (ids == np.searchsorted(cdf, numbers, side="right")).mean() > 0.999


def test_a_repetition_penalty_divides_what_is_positive_and_multiplies_the_rest():
    # SA-03: [2, -2] with 1.5 gives [1.333, -3.0]: made visible by what it loses against.
    params = SamplingParams(temperature=0.0, repetition_penalty=1.5)
    seen = (history(0, prompt=[0], output=[1]),)
    assert draw([[2.0, -2.0, 1.33]], [params], histories=seen).ids.tolist() == [0]
    assert draw([[2.0, -2.0, 1.34]], [params], histories=seen).ids.tolist() == [2]
    assert draw([[-9.0, -2.0, -2.99]], [params], histories=seen).ids.tolist() == [2]
    assert draw([[-9.0, -2.0, -3.01]], [params], histories=seen).ids.tolist() == [1]


def test_frequency_and_presence_look_at_the_output_only():
    params = SamplingParams(temperature=0.0, frequency_penalty=0.5, presence_penalty=0.25)
    seen = (history(0, prompt=[1, 1, 1], output=[0, 0]),)
    assert draw([[2.0, 0.76]], [params], histories=seen).ids.tolist() == [1]
    assert draw([[2.0, 0.74]], [params], histories=seen).ids.tolist() == [0]


def test_a_pending_history_counts_the_newest_token_too():
    params = SamplingParams(temperature=0.0, presence_penalty=1.0)
    logits = [[2.0, 1.5]]
    known = (history(0, output=[1]),)
    pending = (history(0, output=[1], pending=True),)
    assert draw(logits, [params], histories=known, newest=[0]).ids.tolist() == [0]
    assert draw([[2.0, 1.5, 1.2]], [params], histories=pending, newest=[0]).ids.tolist() == [2]


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_a_bias_of_minus_100_forbids_and_of_100_forces(temperature):
    # SA-04.
    logits = np.random.default_rng(1).normal(0, 3, (50, VOCAB))
    best = int(logits.sum(0).argmax())

    def params(bias):
        return [
            SamplingParams(temperature=temperature, seed=s, logit_bias={best: bias})
            for s in range(50)
        ]

    assert best not in draw(logits, params(-100.0)).ids.tolist()
    assert set(draw(logits, params(100.0)).ids.tolist()) == {best}


def test_bias_comes_before_penalties():
    params = SamplingParams(temperature=0.0, repetition_penalty=2.0, logit_bias={0: 4.0})
    seen = (history(0, prompt=[0]),)
    # (-1 + 4) / 2 = 1.5, not -1 * 2 + 4 = 2.
    assert draw([[-1.0, 1.6]], [params], histories=seen).ids.tolist() == [1]


def test_logprobs_are_those_of_the_model_whatever_is_done_to_the_logits():
    # SA-07.
    logits = np.random.default_rng(2).normal(0, 1, (1, VOCAB))
    plain = draw(logits, [SamplingParams(temperature=0.0, top_logprobs=5)])
    changed = draw(
        logits,
        [
            SamplingParams(
                temperature=0.0,
                top_p=0.0001,
                top_k=2,
                top_logprobs=5,
                repetition_penalty=1.9,
                logit_bias={3: -100.0},
            )
        ],
        histories=(history(0, prompt=range(VOCAB)),),
    )
    expected = torch.log_softmax(torch.tensor(logits[0]), -1)
    for found in (plain, changed):
        token = found.ids.item()
        assert found.chosen_logprobs[0] == pytest.approx(expected[token].item(), abs=1e-5)
        assert found.top_logprobs[0].token_ids.tolist() == expected.topk(5).indices.tolist()
        np.testing.assert_allclose(
            found.top_logprobs[0].logprobs, expected.topk(5).values, atol=1e-5
        )


def test_sparse_parameters_find_their_row_when_not_all_rows_sample():
    params = [SamplingParams(temperature=0.0, logit_bias={i: 50.0}) for i in range(4)]
    masks = TokenMasks(np.array([0, 3], np.int32), np.full((2, 2), 2**4, np.int32))
    suppressed = ((1, np.array([1], np.int32)), (2, np.array([2], np.int32)))
    logits = np.zeros((2, VOCAB)) + np.linspace(1, 0, VOCAB)
    found = draw(logits, params, rows=[2, 3], masks=masks, suppressed=suppressed)
    assert found.ids.tolist() == [0, 4]


class GivenLogits(ComposedDecoder):
    def __init__(self, logits):
        self._ops = get_ops()
        self._given = logits

    def logits(self, hidden):
        return self._given.clone()


@settings(max_examples=60, deadline=None)
@given(st.data(), st.integers(0, 1000))
def test_the_short_way_under_masks_gives_what_the_long_one_does(data, seed):
    rng = np.random.default_rng(seed)
    batch = data.draw(st.integers(1, 6))
    rows = sorted(data.draw(st.sets(st.integers(0, batch - 1), min_size=1)))
    index = np.array(sorted(data.draw(st.sets(st.integers(0, batch - 1)))), np.int32)
    bits = rng.integers(-(2**31), 2**31, (len(index), 2)).astype(np.int32)
    for empty in data.draw(st.sets(st.integers(0, 5))):
        bits[empty:] = 0
    logits = rng.normal(0, 1, (len(rows), VOCAB)).round(1).astype(np.float32)
    if bad := data.draw(st.sampled_from([None, np.nan, np.inf, -np.inf])):
        logits[rng.integers(len(rows)), rng.integers(VOCAB)] = bad
    params = [SamplingParams(temperature=0.0)] * batch
    masks = TokenMasks(index, bits)
    expected = draw(logits, params, rows=rows, masks=masks)
    assert wants_greedy_only(
        SamplingBatch.from_params(params, [0] * batch, [9] * batch), np.array(rows)
    )
    tokens = GivenLogits(torch.tensor(logits)).greedy(None, bits_of_rows(masks, np.array(rows)))
    found = greedy(tokens, np.array(rows))
    assert found.ids.tolist() == expected.ids.tolist()
    assert found.ok.tolist() == expected.ok.tolist()
    assert found.errors == expected.errors


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_with_a_bad_logit_fails_alone(bad, temperature):
    logits = np.random.default_rng(2).normal(0, 1, (3, VOCAB))
    params = [SamplingParams(temperature=temperature, seed=i, top_k=7) for i in range(3)]
    clean = draw(logits, params)
    logits[1, 11] = bad
    # A mask over the bad place does not make the row good.
    masks = TokenMasks(np.array([1], np.int32), np.array([[1, 0]], np.int32))
    found = draw(logits, params, masks=masks)
    assert found.errors == {1: NOT_FINITE}
    assert found.ok.tolist() == [True, False, True]
    assert found.ids[[0, 2]].tolist() == clean.ids[[0, 2]].tolist()
    assert found.ids[1] == 0
