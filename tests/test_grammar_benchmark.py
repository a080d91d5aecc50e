"""The benchmark of masks: its constraints and texts fit each other, and it measures all engines."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import jsonschema
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

pytest.importorskip("xgrammar")
pytest.importorskip("llguidance")

from benchmarks.grammar.mask_times import HEAD, Times, figures_of, lines
from benchmarks.grammar.masks import CASES, ENGINES, Case, measure_case, read_cases

GIVEN = json.loads(CASES.read_text(encoding="utf-8"))


@pytest.mark.parametrize("case", GIVEN, ids=lambda case: case["name"])
def test_the_texts_satisfy_the_constraints(case):
    for text in case["texts"]:
        if case["kind"] == "regex":
            assert re.fullmatch(case["source"], text)
        else:
            jsonschema.Draft202012Validator(case["source"]).validate(json.loads(text))


def test_names_are_given_once():
    cases = read_cases(lambda text: list(text.encode()))
    assert len({case.name for case in cases}) == len(cases) >= 20


class Refusing:
    """An engine whose followers take every token but 3."""

    def compile(self, case):
        return lambda: self

    def mask(self):
        return None

    def accept(self, token):
        return token != 3


def test_every_engine_is_measured_at_every_token():
    case = Case("x", "regex", "", [[1, 2], [4]])
    engines = {name: Refusing() for name in ENGINES}
    times = measure_case(case, engines, rounds=2, passes=2, requests=5)
    assert list(times) == ["fsm", "xgrammar", "llguidance"]
    for one in times.values():
        assert [len(one.compile_ms), len(one.cold_us), len(one.warm_us)] == [1, 3, 3]
        assert len(one.accept_us) == 3
        assert len(one.request_us) == 2 + 1 + 2 + 1 + 2
        assert one.compile_ms < one.first_text_ms < one.served_ms
    assert len(Times.of_all(list(times.values())).warm_us) == 9


def test_every_text_is_answered_however_few_requests_there_are():
    case = Case("x", "regex", "", [[1, 2], [4]])
    times = measure_case(case, {"fsm": Refusing()}, rounds=1, passes=1, requests=1)
    assert len(times["fsm"].request_us) == len(times["fsm"].cold_us) == 3


def test_figures_are_medians_and_ours_over_the_best_of_the_others():
    times = {
        name: Times([scale], [scale], [5 * scale], [scale, scale], [scale], [scale], [scale])
        for name, scale in (("fsm", 1.0), ("xgrammar", 4.0), ("llguidance", 2.0))
    }
    found = figures_of("all", times)
    assert found["all_llguidance_served_ms"] == 10.0
    assert found["all_vs_best_served_ms"] == found["all_vs_best_request_p99_us"] == 0.5
    table = lines("all", times).splitlines()
    assert [len(line.split()) for line in table] == [12] * 3
    assert all(len(line) == len(HEAD) for line in table)


def test_an_engine_that_refuses_a_text_is_an_error():
    with pytest.raises(RuntimeError, match="token 3 of x"):
        measure_case(
            Case("x", "regex", "", [[1, 3]]), {"fsm": Refusing()}, rounds=1, passes=1, requests=1
        )
