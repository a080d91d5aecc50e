"""The JSON-Schema-Test-Suite, where it lies beside the checkout: it is no part of it."""

from pathlib import Path

import pytest

from phloem.grammar import Vocabulary
from phloem.grammar.conformance import markdown, run_suite, table
from phloem.grammar.fsm_backend import FsmBackend

SUITE = Path(__file__).parents[2] / "shared" / "data" / "json-schema-test-suite"
SUPPORT = Path(__file__).parents[1] / "docs" / "grammar-support.md"
FOLDERS = sorted(SUITE.glob("draft*"))


@pytest.mark.skipif(not FOLDERS, reason="the JSON-Schema-Test-Suite is not beside the checkout")
@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_no_answer_of_the_fsm_backend_is_false_and_of_draft_7_few_are_missing(folder):
    vocabulary = Vocabulary([*(bytes([byte]) for byte in range(256)), b"</s>"], [256])
    # Each schema takes milliseconds, but so long a run of tests has a heap whose collection, if it
    # falls into one, takes longer than a constraint may by default.
    report = run_suite(folder, FsmBackend(vocabulary, seconds=20))
    total = report.total
    assert total.tests > 500
    assert total.wrong == 0, table(report)
    if folder.name == "draft7":
        assert total.unsupported <= 0.1 * total.tests, table(report)
        rows = [line for line in markdown([report]).splitlines() if line.startswith("| ")]
        published = SUPPORT.read_text(encoding="utf-8")
        assert [row for row in rows[1:] if f"\n{row}" not in published] == []
    assert all(refusal.keyword and refusal.message for refusal in total.refusals)
