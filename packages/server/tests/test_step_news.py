"""The messages about a step: those of plain tokens are made without outputs between."""

import numpy as np
import pytest

from phloem.scheduler import News, PlainTokens, SamplingParams
from phloem.scheduler.guide import Guide
from phloem.scheduler.request import FinishReason, Request
from phloem.server.messages import TextOptions
from phloem.server.news import token_news
from phloem.server.step_news import step_news
from phloem.server.thinking_budget import ThinkingBudget


def request(rid, **fields):
    made = Request(rid, np.arange(5, dtype=np.int32), SamplingParams(), 9, seed=1, arrived=2.0)
    for name, value in fields.items():
        setattr(made, name, value)
    return made


@pytest.fixture
def news():
    requests = [
        request("a", cached_tokens=3, retractions=2, first_token=4.0),
        request("b", brought=(1, 2), guide=Guide(ThinkingBudget([3], 9), jumped=4)),
    ]
    ended = request("c", finish_reason=FinishReason("stop", matched=7))
    made = News()
    made.parts = [
        PlainTokens(requests, np.array([11, 12], np.int32), np.array([7, 6], np.int32)),
        ended.report((13,)),
    ]
    return made


def test_are_those_of_single_outputs(news):
    messages = step_news(news, {})
    assert messages == [token_news(output) for output in news]
    assert [(m.rid, m.token_ids, m.completion_tokens) for m in messages[:2]] == [
        ("a", [11], 2),
        ("b", [12], 1),
    ]
    assert [m.jump_forward_tokens for m in messages] == [0, 4, 0]


def test_options_go_with_the_first_news_of_whom_they_are(news):
    options = {"b": TextOptions([], False), "d": TextOptions([], True)}
    first = options["b"]
    messages = step_news(news, options)
    assert [m.options for m in messages] == [None, first, None]
    assert list(options) == ["d"]
    assert messages[1].timings is not None
