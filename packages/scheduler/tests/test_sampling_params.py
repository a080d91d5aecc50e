"""Sampling parameters: what is refused, and how a batch of them looks."""

from __future__ import annotations

import math
from dataclasses import fields, replace

import numpy as np
import pytest

from phloem.scheduler import SamplingBatch, SamplingParams


@pytest.mark.parametrize("name", ["temperature", "top_p", "min_p", "frequency_penalty"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, "1", True, None, -5, 1e300])
def test_odd_numbers_are_refused_by_name(name, value):
    with pytest.raises(ValueError, match=name):
        SamplingParams(**{name: value})


@pytest.mark.parametrize("name", ["max_new_tokens", "min_new_tokens", "top_k", "seed"])
@pytest.mark.parametrize("value", [1.5, "3", True, -(2**70)])
def test_odd_integers_are_refused_by_name(name, value):
    with pytest.raises(ValueError, match=name):
        SamplingParams(**{name: value})


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"min_new_tokens": 5, "max_new_tokens": 4}, "more than max_new_tokens 4"),
        ({"stop": [1]}, "non-empty strings"),
        ({"stop": ["x"] * 33}, "at most 32"),
        ({"stop": "x" * 1025}, "stop has a string of 1025 characters.* at most 1024 in each"),
        ({"stop": ["x" * 1000] * 5}, "5000 altogether: .* 4096 in all"),
        ({"stop_token_ids": [1] * 1025}, "stop_token_ids has 1025 token ids: give at most 1024"),
        ({"logit_bias": dict.fromkeys(range(1025), 1)}, "logit_bias has 1025 token ids"),
        ({"stop": 5}, "stop is 5"),
        ({"stop": {"a": 1}}, "string or a list"),
        ({"stop_token_ids": ["a"]}, "stop_token_ids has 'a'"),
        ({"stop_token_ids": 5}, "list of token ids"),
        ({"logit_bias": {"a": 1}}, "logit_bias has token id 'a'"),
        ({"logit_bias": {"\u0663": 1}}, "logit_bias has token id '\u0663'"),
        ({"logit_bias": {5.7: 1}}, "token id 5.7"),
        ({"logit_bias": {True: 1}}, "token id True"),
        ({"logit_bias": [1]}, "give an object"),
        ({"ignore_eos": "false"}, "ignore_eos is 'false'"),
        ({"temperature": 10**400}, "temperature is inf"),
        ({"logit_bias": {1: math.nan}}, "logit_bias of token 1"),
        ({"logit_bias": {1: 101}}, r"in \[-100, 100\]"),
        ({"top_logprobs": 129}, "0 to 128"),
        ({"prompt_logprobs_from": -1}, "prompt_logprobs_from is -1"),
        ({"best_off": 1}, "unknown sampling parameter 'best_off'"),
    ],
)
def test_what_makes_no_sense_is_refused_in_a_sentence(given, says):
    with pytest.raises(ValueError, match=says):
        SamplingParams.from_dict(given)


def test_forms_that_users_give_are_taken():
    params = SamplingParams.from_dict(
        {"stop": "x", "stop_token_ids": [1, 2], "logit_bias": {"7": 3}, "temperature": 1}
    )
    assert params.stop == ("x",)
    assert params.stop_token_ids == (1, 2)
    assert params.logit_bias == {7: 3.0}
    assert SamplingParams(stop=None).stop == ()
    assert type(SamplingParams(seed=np.int64(3), top_k=np.int32(2)).seed) is int
    assert SamplingParams(temperature=np.float32(0.5)).temperature == 0.5


def test_greedy_is_temperature_zero_or_nearly_or_one_candidate():
    assert SamplingParams(temperature=0).greedy
    assert SamplingParams(temperature=1e-7).greedy
    assert SamplingParams(top_k=1).greedy
    assert not SamplingParams().greedy


def test_a_batch_has_one_entry_a_row_and_names_sparse_ones():
    batch = SamplingBatch.from_params(
        [
            SamplingParams(top_k=1),
            SamplingParams(temperature=0.5, logit_bias={3: -1.0}, top_logprobs=2),
        ],
        seeds=[4, 5],
        positions=[10, 20],
    )
    assert batch.temperature.tolist() == [0.0, 0.5]
    assert batch.top_logprobs.tolist() == [-1, 2]
    assert batch.positions.tolist() == [10, 20]
    ((row, ids, values),) = batch.logit_bias
    assert (row, ids.tolist(), values.tolist()) == (1, [3], [-1.0])
    assert batch.seeds.dtype == np.int64


def test_a_batch_at_other_positions_differs_in_nothing_else():
    marked = replace(
        SamplingBatch.from_params([SamplingParams()], [1], [2]),
        **{field.name: object() for field in fields(SamplingBatch)},
    )
    positions = np.array([7], np.int32)
    moved, expected = marked.at(positions), replace(marked, positions=positions)
    for field in fields(SamplingBatch):
        assert getattr(moved, field.name) is getattr(expected, field.name)
