from __future__ import annotations

import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phloem.server.bench.figures import medians, percentile, summarize
from phloem.server.streamed_answer import Answer


def answer(*arrivals, tokens=None, prompt=10, cached=None, **more):
    return Answer(
        text="x" * len(arrivals),
        arrivals=arrivals,
        ended=arrivals[-1] if arrivals else 0.0,
        prompt_tokens=prompt,
        completion_tokens=len(arrivals) if tokens is None else tokens,
        cached_tokens=cached,
        finish_reason="stop",
        **more,
    )


def test_figures_of_a_made_up_time_line():
    # Gaps of 100, 300 ms; and 200, 200, 200 ms where five tokens came in four pieces.
    answers = [answer(0.5, 0.6, 0.9), answer(1.0, 1.2, 1.4, 1.6, tokens=5, prompt=30)]
    figures = summarize(answers, 2.0)
    assert figures.as_dict() == pytest.approx(
        {
            "requests": 2,
            "failed": 0,
            "wall_s": 2.0,
            "prompt_tokens": 40,
            "output_tokens": 8,
            "output_tokens_per_s": 4.0,
            "total_tokens_per_s": 24.0,
            "ttft_p50_ms": 750.0,
            "ttft_p99_ms": 995.0,
            "itl_p50_ms": 200.0,
            "itl_p99_ms": 296.0,
            # (0.9 - 0.5) / 2 and (1.6 - 1.0) / 4
            "tpot_p50_ms": 175.0,
        }
    )


def test_an_answer_that_failed_counts_as_that_and_nothing_else():
    failed = answer(0.1, 9.9, tokens=2, cached=7, error="out of memory")
    later = Answer(error="connection refused")
    figures = summarize([answer(1.0, 2.0), failed, later], 4.0)
    assert (figures.requests, figures.failed, figures.first_error) == (3, 2, "out of memory")
    assert (figures.output_tokens, figures.prompt_tokens, figures.cached_tokens) == (2, 10, None)
    assert (figures.ttft_p99_ms, figures.itl_p99_ms) == (1000.0, 1000.0)


def test_when_all_failed_there_are_no_latencies():
    figures = summarize([Answer(error="no")], 1.0)
    assert (figures.output_tokens_per_s, figures.ttft_p50_ms, figures.tpot_p50_ms) == (
        0,
        None,
        None,
    )


def test_an_output_of_one_token_has_a_ttft_alone():
    figures = summarize([answer(0.5)], 1.0)
    assert (figures.ttft_p50_ms, figures.itl_p50_ms, figures.tpot_p50_ms) == (500.0, None, None)


def test_cached_tokens_are_added_up_where_they_are_told():
    told = [answer(1.0, cached=0), answer(1.0, cached=6), answer(1.0)]
    assert summarize(told, 1.0).cached_tokens == 6
    assert summarize([answer(1.0)], 1.0).cached_tokens is None


def test_structured_answers_are_checked():
    good = '{"name": "A", "age": 1, "email": "a@b", "tags": []}'
    answers = [
        Answer(text, (1.0,), 1.0, 1, 1, None, finish, None)
        for text, finish in ((good, "stop"), (good[:-1], "length"))
    ]
    answers.append(Answer(error="no response_format here"))
    figures = summarize(answers, 1.0, structured=True)
    assert (figures.valid_json, figures.cut_by_length) == (1 / 3, 1)


def test_medians_are_of_each_figure_by_itself():
    runs = [
        summarize([answer(first, first + gap)], wall)
        for first, gap, wall in ((3.0, 1.0, 1.0), (1.0, 2.0, 2.0), (2.0, 4.0, 4.0))
    ]
    middle = medians(runs)
    assert (middle.wall_s, middle.ttft_p50_ms, middle.itl_p50_ms) == (2.0, 2000.0, 2000.0)
    assert middle.output_tokens_per_s == 1.0
    broken = summarize([Answer(error="no")], 1.0)
    assert medians([broken, runs[0]]).ttft_p50_ms == 3000.0
    assert medians([runs[0], broken]).first_error == "no"


@given(st.lists(st.floats(-1e6, 1e6), min_size=1), st.floats(0, 100))
def test_percentiles_are_those_of_numpy(values, percent):
    assert percentile(values, percent) == pytest.approx(np.percentile(values, percent), abs=1e-6)
    assert percentile(values, 50) == pytest.approx(statistics.median(values), abs=1e-6)


def test_no_values_have_no_percentile():
    assert percentile([], 50) is None
