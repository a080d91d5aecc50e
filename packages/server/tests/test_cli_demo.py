from __future__ import annotations

import pytest


def paris(given):
    return ["The capital of France ", "is Paris."] if len(given) == 2 else ["Its towers."]


def test_the_demo_asks_twice_and_ends_with_0(phloem):
    done = phloem("demo", "--once", answer=paris)
    assert (done.code, done.out) == (0, "The capital of France is Paris.\nIts towers.\n")
    assert "2 of its 4 tokens came from the prefix cache" in done.err
    assert done.engine.asked[1][0][:3] == [
        "You are a helpful assistant.",
        "What is the capital of France?",
        "The capital of France is Paris.",
    ]


def test_without_once_the_demo_goes_on_as_a_chat(phloem):
    done = phloem("demo", answer=paris, stdin="And?\n")
    assert (done.code, done.engine.asked[2][0][-1]) == (0, "And?")
    assert len(done.engine.asked[2][0]) == 6


@pytest.mark.parametrize(
    ("engine", "says"),
    [
        ({"answer": lambda given: ["Lyon."]}, "does not say Paris"),
        ({"answer": lambda given: ["Paris."] if len(given) == 2 else [" "]}, "no answer"),
        ({"answer": lambda given: RuntimeError("out of memory")}, "out of memory"),
        ({"answer": paris, "finish": {"finish": "error", "message": "NaN"}}, "NaN"),
    ],
)
def test_a_demo_that_goes_wrong_ends_with_1(phloem, engine, says):
    done = phloem("demo", "--once", **engine)
    assert (done.code, says in done.err) == (1, True)


def test_a_demo_without_a_cache_hit_ends_with_1(phloem):
    done = phloem("demo", "--once", answer=paris, finish={"cached": 0})
    assert (done.code, "nothing in the prefix cache" in done.err) == (1, True)
