"""best_of: which sequences are returned, and what all of them cost."""

from __future__ import annotations

import json

from phloem.server.http.completions import BestOfForm, Choice
from phloem.server.messages import Finish, Logprobs, TextNews


def output(text, *logprobs):
    return TextNews(
        rid="r",
        text=text,
        token_ids=list(range(len(logprobs))),
        finish=Finish("stop"),
        prompt_tokens=3,
        completion_tokens=len(logprobs),
        cached_tokens=0,
        logprobs=Logprobs(list(logprobs), []),
    )


def answer(n, best_of, *outputs):
    form = BestOfForm("id", "model", n, [Choice() for _ in outputs], best_of)
    return json.loads(form.whole(outputs))


def test_the_highest_mean_is_returned_and_not_the_highest_sum():
    best = answer(1, 3, output("long", *[-0.1] * 9), output("short", -0.2), output("bad", -5))
    assert [choice["text"] for choice in best["choices"]] == ["long"]
    assert best["choices"][0]["logprobs"] is None


def test_all_that_was_generated_counts():
    usage = answer(1, 3, output("a", -1, -1), output("b", -2), output("c", -3))["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (3, 4)


def test_each_prompt_has_its_best_in_order():
    outputs = [output(name, value) for name, value in zip("abcdef", (-3, -1, -2, -1, -9, -1))]
    best = answer(2, 3, *outputs)
    assert [choice["text"] for choice in best["choices"]] == ["b", "c", "d", "f"]
    assert [choice["index"] for choice in best["choices"]] == [0, 1, 2, 3]
    assert best["usage"]["prompt_tokens"] == 6


def test_the_truth_of_the_chosen_is_told():
    kept = output("a", -1)
    kept.retractions = 7
    assert answer(1, 2, output("b", -2), kept)["choices"][0]["retractions"] == 7


def test_outputs_without_tokens_are_ranked_too():
    assert answer(1, 2, output("", *[]), output("a", -1))["choices"][0]["text"] == ""
