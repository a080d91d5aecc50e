"""The suite runner, on vectors of this package and on backends that answer wrongly."""

import json
from pathlib import Path

import pytest
from grammar_vocabularies import byte_vocabulary
from json_values import accepts

from phloem.grammar import GrammarError, create_backend
from phloem.grammar.conformance import main, markdown, run_suite, table, texts_of
from phloem.grammar.json_schema import normalize

VECTORS = Path(__file__).parent / "json_schema_vectors"


def groups():
    for file in sorted(VECTORS.glob("*.json")):
        for group in json.loads(file.read_text(encoding="utf-8")):
            yield pytest.param(group, id=f"{file.stem}: {group['description']}")


@pytest.mark.parametrize("group", list(groups()))
def test_the_normal_form_holds_exactly_the_valid_values(group):
    if not any(test["valid"] for test in group["tests"]):
        with pytest.raises(GrammarError, match="no value is valid"):
            normalize(group["schema"])
        return
    graph = normalize(group["schema"])
    for test in group["tests"]:
        assert accepts(graph, test["data"]) == test["valid"], test


def test_the_fsm_backend_answers_every_vector_and_supports_every_schema():
    report = run_suite(VECTORS, create_backend("fsm", byte_vocabulary()))
    total = report.total
    assert total.tests > 400
    assert total.accepted + total.refused == total.tests, table(report)


class OpenGrammar:
    """Accepts everything."""

    def accepts(self, text):
        return True


class OneOrderGrammar:
    """Accepts only texts whose properties come in the order of the alphabet."""

    def accepts(self, text):
        return text == json.dumps(json.loads(text), separators=(",", ":"), sort_keys=True)


class Backend:
    name = "scripted"

    def __init__(self, grammar):
        self.grammar = grammar

    def compile(self, constraint):
        return create_backend("fsm", byte_vocabulary()).compile(constraint) and self.grammar


def suite(folder, schema, tests):
    group = {
        "description": "one",
        "schema": schema,
        "tests": [{"description": str(d), "data": d, "valid": v} for d, v in tests],
    }
    (folder / "objects.json").write_text(json.dumps([group]))
    return folder


def test_an_answer_that_is_wrong_for_one_order_of_properties_is_wrong(tmp_path):
    folder = suite(tmp_path, {}, [({"a": 1, "b": 2}, True), ([], True)])
    total = run_suite(folder, Backend(OneOrderGrammar())).total
    assert total.accepted == 1
    assert total.false_refusals == ["objects: one: {'a': 1, 'b': 2}"]


def test_false_acceptances_are_named_and_fail_the_command(tmp_path, monkeypatch, capsys):
    folder = suite(tmp_path, {"type": "integer"}, [(1, True), ("x", False)])
    backend = Backend(OpenGrammar())
    assert run_suite(folder, backend).total.false_acceptances == ["objects: one: x"]
    monkeypatch.setattr("phloem.grammar.conformance.create_backend", lambda *_: backend)
    assert main([str(folder)]) == 1
    assert "falsely accepted: objects: one: x" in capsys.readouterr().out


def test_a_schema_that_is_refused_is_listed_with_its_place(tmp_path, capsys):
    schema = {"properties": {"a": {"uniqueItems": True}}}
    folder = suite(tmp_path, schema, [({}, True), ({"a": [1, 1]}, False)])
    report = run_suite(folder, create_backend("fsm", byte_vocabulary()))
    [refusal] = report.total.refusals
    assert (refusal.tests, refusal.pointer, refusal.keyword) == (2, "/properties/a", "uniqueItems")
    assert "uniqueItems at /properties/a" in table(report)
    target = tmp_path / "table.md"
    assert main([str(folder), "--markdown", str(target)]) == 0
    assert target.read_text() == markdown([report])
    assert "| objects | 2 | 0, 2 refused |" in target.read_text()
    assert "Refused by `fsm`, with the number of tests: `uniqueItems` 2." in target.read_text()
    capsys.readouterr()


def test_a_schema_without_valid_values_refuses_rightly(tmp_path):
    folder = suite(tmp_path, False, [(1, False), ({}, False)])
    assert run_suite(folder, create_backend("fsm", byte_vocabulary())).total.refused == 2


def test_texts_come_with_and_without_escapes_and_in_several_orders():
    texts = set(texts_of({"é": [{"x": 1, "y": 2}], "b": 1}))
    assert '{"\\u00e9":[{"x":1,"y":2}],"b":1}' in texts
    assert '{"b":1,"é":[{"y":2,"x":1}]}' in texts
    assert all(json.loads(text) == {"é": [{"x": 1, "y": 2}], "b": 1} for text in texts)


def test_a_folder_that_is_no_suite_is_refused(tmp_path):
    with pytest.raises(GrammarError, match=r"no \*\.json"):
        run_suite(tmp_path, create_backend("fsm", byte_vocabulary()))
    (tmp_path / "x.json").write_text('{"a": 1}')
    with pytest.raises(GrammarError, match="not of the suite's format"):
        run_suite(tmp_path, create_backend("fsm", byte_vocabulary()))
