"""Holds a backend against a folder of the JSON-Schema-Test-Suite format, keyword by keyword.

    python -m phloem.grammar.conformance FOLDER [--backend fsm ...] [--markdown FILE]

Each instance is written as compact JSON, with and without escapes for what is not ASCII, and with
the properties of objects in three orders; all of these texts must get the answer that the suite
gives. Formats are annotations, as in the suite. The suite itself is no part of this package.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from phloem.grammar.base import Grammar, GrammarBackend
from phloem.grammar.constraint import Constraint
from phloem.grammar.errors import ConstraintTooComplex, GrammarError, UnsupportedConstraint
from phloem.grammar.registry import create_backend
from phloem.grammar.vocabulary import Vocabulary

_PREFACE = """\
# What of JSON Schema is enforced

Written by `python -m phloem.grammar.conformance FOLDER --backend ... --markdown FILE` over a folder
of the [JSON-Schema-Test-Suite](https://github.com/json-schema-org/JSON-Schema-Test-Suite). One row
is one file of the suite. A cell counts the tests that were answered rightly, over all ways to write
an instance as compact JSON (escaped or not, properties in any order: a backend that knows only a
fixed order refuses all schemas with properties here); then false answers, in **bold**; then tests
under schemas that the backend refuses to compile. A valid instance is falsely refused if one of its
spellings is: `1.0` for the integer 1, or an escaped character.
"""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A schema that a backend refused to compile, as its error named it."""

    group: str
    tests: int
    pointer: str
    keyword: str
    message: str


@dataclass(slots=True)
class Tally:
    """What came out for one file of the suite; all numbers are tests."""

    keyword: str
    """The name of the file."""
    accepted: int = 0
    """Valid, and accepted in all of its texts."""
    refused: int = 0
    """Invalid, and refused in all of its texts."""
    false_acceptances: list[str] = field(default_factory=list)
    false_refusals: list[str] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)

    @property
    def unsupported(self) -> int:
        """Under schemas that did not compile."""
        return sum(refusal.tests for refusal in self.refusals)

    @property
    def wrong(self) -> int:
        """False acceptances and false refusals."""
        return len(self.false_acceptances) + len(self.false_refusals)

    @property
    def tests(self) -> int:
        """All of them."""
        return self.accepted + self.refused + self.wrong + self.unsupported


@dataclass(frozen=True, slots=True)
class Report:
    """What came out for a whole folder."""

    backend: str
    tallies: tuple[Tally, ...]

    @property
    def total(self) -> Tally:
        """The sum over all files."""
        total = Tally("all")
        for tally in self.tallies:
            total.accepted += tally.accepted
            total.refused += tally.refused
            total.false_acceptances += tally.false_acceptances
            total.false_refusals += tally.false_refusals
            total.refusals += tally.refusals
        return total


def run_suite(folder: Path, backend: GrammarBackend) -> Report:
    """All files of a folder.

    Raises:
        GrammarError: if there is none, or one is not of the suite's format.
    """
    files = sorted(folder.glob("*.json"))
    if not files:
        raise GrammarError(
            f"{folder} has no *.json: give a folder such as tests/draft7 of the suite"
        )
    return Report(backend.name, tuple(_run_file(file, backend) for file in files))


def texts_of(instance: Any) -> Iterator[str]:
    """The texts of an instance that are tried."""
    orders = [instance, _reordered(instance, lambda names: names[::-1])]
    orders.append(_reordered(instance, _shuffled))
    seen = set()
    for value in orders:
        for ascii_only in (True, False):
            text = json.dumps(value, ensure_ascii=ascii_only, separators=(",", ":"))
            if text not in seen:
                seen.add(text)
                yield text


def table(report: Report) -> str:
    """A report for terminals: counts per keyword, then what is wrong, then what is refused."""
    heads = ("keyword", "tests", "accepted", "refused", "falsely +", "falsely -", "unsupported")
    lines = ["{:28}{:>7}{:>10}{:>9}{:>11}{:>11}{:>13}".format(*heads)]
    lines += [
        f"{each.keyword:28}{each.tests:7}{each.accepted:10}{each.refused:9}"
        f"{len(each.false_acceptances):11}{len(each.false_refusals):11}{each.unsupported:13}"
        for each in (*report.tallies, report.total)
    ]
    total = report.total
    lines += [f"falsely accepted: {each}" for each in total.false_acceptances]
    lines += [f"falsely refused: {each}" for each in total.false_refusals]
    lines += [
        f"unsupported ({each.tests} tests): {each.group}: {each.keyword} at {each.pointer or '/'}"
        for each in total.refusals
    ]
    return "\n".join(lines)


def markdown(reports: Sequence[Report]) -> str:
    """A document of what each backend supports, per keyword, and what it refuses."""
    heads = " | ".join(f"`{report.backend}`" for report in reports)
    rows = zip(*(report.tallies for report in reports), strict=True)
    lines = [_PREFACE, f"| keyword | tests | {heads} |", f"|---|---:|{'---|' * len(reports)}"]
    for row in [*rows, tuple(report.total for report in reports)]:
        cells = " | ".join(map(_cell, row))
        lines.append(f"| {row[0].keyword} | {row[0].tests} | {cells} |")
    for report in reports:
        counts = Counter[str]()
        for refusal in report.total.refusals:
            counts[refusal.keyword] += refusal.tests
        lines += ["", f"Refused by `{report.backend}`, with the number of tests:"]
        refused = [f"`{keyword}` {tests}" for keyword, tests in counts.most_common()]
        lines[-1] += f" {', '.join(refused) or 'nothing'}."
    return "\n".join(lines) + "\n"


def _cell(tally: Tally) -> str:
    parts = [str(tally.accepted + tally.refused)]
    if tally.false_acceptances:
        parts.append(f"**{len(tally.false_acceptances)} falsely accepted**")
    if tally.false_refusals:
        parts.append(f"**{len(tally.false_refusals)} falsely refused**")
    if tally.unsupported:
        parts.append(f"{tally.unsupported} refused")
    return ", ".join(parts)


def _run_file(file: Path, backend: GrammarBackend) -> Tally:
    tally = Tally(file.stem)
    try:
        groups = json.loads(file.read_text(encoding="utf-8"))
        for group in groups:
            _run_group(group, backend, tally)
    except (TypeError, KeyError, json.JSONDecodeError) as error:
        raise GrammarError(
            f"{file} is not of the suite's format ({error!r}): it must be a list of groups with "
            "description, schema and tests"
        ) from error
    return tally


def _run_group(group: dict[str, Any], backend: GrammarBackend, tally: Tally) -> None:
    name, tests = group["description"], group["tests"]
    grammar: Grammar | None = None
    try:
        grammar = backend.compile(
            Constraint.json_schema(group["schema"], property_order="free", formats="annotate")
        )
    except (UnsupportedConstraint, ConstraintTooComplex) as error:
        pointer, keyword = "", "too complex"
        if isinstance(error, UnsupportedConstraint):
            pointer, keyword = error.pointer, error.keyword
        tally.refusals.append(Refusal(name, len(tests), pointer, keyword, str(error)))
        return
    except GrammarError as error:
        # That no value is valid is a right answer where the suite has no valid instance.
        if any(test["valid"] for test in tests):
            tally.refusals.append(Refusal(name, len(tests), "", "error", str(error)))
            return
    for test in tests:
        answers = {grammar is not None and grammar.accepts(each) for each in texts_of(test["data"])}
        what = f"{tally.keyword}: {name}: {test['description']}"
        if test["valid"] and False in answers:
            tally.false_refusals.append(what)
        elif not test["valid"] and True in answers:
            tally.false_acceptances.append(what)
        elif test["valid"]:
            tally.accepted += 1
        else:
            tally.refused += 1


def _shuffled(names: list[str]) -> list[str]:
    return random.Random(len(names)).sample(names, len(names))


def _reordered(value: Any, order: Any) -> Any:
    if isinstance(value, list):
        return [_reordered(each, order) for each in value]
    if isinstance(value, dict):
        return {name: _reordered(value[name], order) for name in order(list(value))}
    return value


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; 1 if an answer was false."""
    parser = argparse.ArgumentParser(prog="python -m phloem.grammar.conformance")
    parser.add_argument("folder", type=Path, help="such as tests/draft7 of the suite")
    parser.add_argument("--backend", action="append", help="default: fsm; may be repeated")
    parser.add_argument("--markdown", type=Path, help="write the table of all backends to a file")
    options = parser.parse_args(arguments)
    vocabulary = Vocabulary([*(bytes([byte]) for byte in range(256)), b"</s>"], [256])
    reports = []
    for name in options.backend or ["fsm"]:
        reports.append(run_suite(options.folder, create_backend(name, vocabulary)))
        print(f"{name}:\n{table(reports[-1])}\n")
    if options.markdown is not None:
        options.markdown.write_text(markdown(reports), encoding="utf-8")
    return int(any(report.total.wrong for report in reports))


if __name__ == "__main__":
    sys.exit(main())
