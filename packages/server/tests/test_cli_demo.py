from __future__ import annotations

import io

import pytest
from rich.console import Console

from phloem.server.demo import ask_questions


@pytest.fixture
def ask(fake_engine, capsys):
    """Ask an engine that pretends; what went wrong, what it was asked, and all that was shown."""

    def run(**options):
        engine, console = fake_engine(**options), Console(file=io.StringIO(), width=200)
        problems = ask_questions(engine, console)
        return problems, engine.asked, capsys.readouterr().out, console.file.getvalue()

    return run


def paris(given):
    return ["The capital of France ", "is Paris."] if len(given) == 2 else ["Its towers."]


def test_two_questions_are_one_conversation(ask):
    problems, asked, out, shown = ask(answer=paris)
    assert (problems, out) == ([], "The capital of France is Paris.\nIts towers.\n")
    assert asked[1][0] == [
        "You are a helpful assistant.",
        "What is the capital of France?",
        "The capital of France is Paris.",
        "What is it famous for?",
    ]
    assert "3 tokens, 20.0 tokens/s, first token after 0.50 s, 2 of 4 prompt tokens cached" in shown
    assert "2 of its 4 tokens came from the prefix cache" in shown


@pytest.mark.parametrize(
    ("engine", "says"),
    [
        ({"answer": lambda given: ["Lyon."]}, "does not say Paris"),
        ({"answer": lambda given: ["Paris."] if len(given) == 2 else [" "]}, "no answer"),
        ({"answer": paris, "finish": {"finish": "error", "message": "NaN"}}, "NaN"),
        ({"answer": paris, "finish": {"cached": 0}}, "nothing in the prefix cache"),
        ({"answer": paris, "finish": {"cached": None}}, "nothing in the prefix cache"),
    ],
)
def test_what_goes_wrong_is_named(ask, engine, says):
    (problem,) = ask(**engine)[0]
    assert says in problem


def test_a_model_that_is_not_there_ends_the_demo_with_1(phloem):
    done = phloem("demo", "--once", "--model", "./no-such-model")
    assert (done.code, "no-such-model" in done.err) == (1, True)
