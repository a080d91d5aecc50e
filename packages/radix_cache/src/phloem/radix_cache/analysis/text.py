"""The report as text for a terminal. Owns wording and layout; computes no number."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from .report import Curve, Pollution, PollutionReport, PrefixReport, SharedPrefix

_SHOWN: Final = 72
_LISTED: Final = 8


def render(report: PrefixReport) -> str:
    """The report on lines of at most about 100 characters."""
    return "\n".join(_Text(report).lines())


class _Text:
    def __init__(self, report: PrefixReport) -> None:
        self._report = report
        self._estimated = report.units_per_token != 1

    def lines(self) -> Iterator[str]:
        report = self._report
        yield from self._summary()
        if report.curves and report.curves[0].points:
            yield from (
                "",
                f"Hit rate by cache size (tokens; pages of {self._size(report.page_size)})",
            )
            yield from self._table(report.curves)
        if report.shared:
            yield from ("", "Largest shared prefixes")
            for prefix in report.shared:
                yield from self._shared(prefix)
        if report.pollution is not None:
            yield ""
            yield from self._pollution(report.pollution)

    def _summary(self) -> Iterator[str]:
        report = self._report
        yield (
            f"{_requests(report.requests)}, {self._count(report.prompt)} of prompts"
            + (f", {self._count(report.output)} of outputs" if report.output else "")
            + (f", {report.namespaces:,} namespaces" if report.namespaces > 1 else "")
        )
        if self._estimated:
            yield (
                f"No tokenizer was given: texts are compared by {report.unit}, and tokens are "
                f"estimated at {report.units_per_token:g} {report.unit} each."
            )
        least = "" if report.complete else "at least "
        yield (
            f"A cache without bound finds {least}{self._count(report.reusable)}: "
            f"{report.rate:.1%} of prompts, in {_requests(report.requests_with_hit)}."
        )
        if report.complete:
            held = ", outputs included" if report.output else ""
            yield f"It would hold {self._count(report.unique)}{held}."
        else:
            yield f"Only the {self._count(report.unique)} used last are remembered."

    def _table(self, curves: Iterable[Curve]) -> Iterator[str]:
        curves = list(curves)
        yield f"{'':>10}" + "".join(f"{curve.policy:>10}" for curve in curves)
        for points in zip(*(curve.points for curve in curves)):
            rates = "".join(f"{point.rate:>10.1%}" for point in points)
            yield f"{self._size(points[0].size):>10}{rates}"
            if self._report.complete and points[0].size >= self._report.unique:
                break

    def _shared(self, prefix: SharedPrefix) -> Iterator[str]:
        extends = f", beyond a shared {self._number(prefix.start)}" if prefix.start else ""
        owner = f", namespace {prefix.namespace!r}" if prefix.namespace else ""
        yield (
            f"  {self._number(prefix.end)} tokens{extends}: {prefix.requests:,} requests, "
            f"{self._number(prefix.saved)} tokens saved{owner}"
        )
        yield f"      {_cut(prefix.begins, 0)}"
        if prefix.ends:
            yield f"  ... {_cut(prefix.ends, -1)}"

    def _pollution(self, pollution: PollutionReport) -> Iterator[str]:
        scope = (
            "all requests"
            if pollution.requests == self._report.requests
            else f"the last {pollution.requests:,} requests"
        )
        if not pollution.found:
            yield f"Polluted prefixes: none found in {scope}."
            return
        yield (
            f"Polluted prefixes in {scope}: moving {len(pollution.found)} "
            f"{'part' if len(pollution.found) == 1 else 'parts'} to the end of the prompts raises "
            f"the hit rate from {pollution.rate:.1%} to {pollution.moved_rate:.1%}"
        )
        for number, found in enumerate(pollution.found[:_LISTED], 1):
            yield from self._polluted(number, found)
        if len(pollution.found) > _LISTED:
            yield f"  and {len(pollution.found) - _LISTED} more, all of them in the JSON form"
        yield ""
        yield f"LRU hit rate by cache size in {scope}, before and after the move"
        yield from self._moved(pollution)

    def _polluted(self, number: int, found: Pollution) -> Iterator[str]:
        unit = self._report.unit
        yield (
            f"  {number}. {found.kind}, about {found.length:,} {unit} at {found.start:,}, then "
            f"{found.shared:,} {unit} alike: {found.requests:,} requests, {found.distinct:,} "
            f"different; +{found.gain:.1%}"
        )
        for example in found.examples:
            before, after = _cut(found.before, -1, 24), _cut(found.after, 0, 24)
            yield f"      {before}[{_cut(example, 0, 48)}]{after}"
        yield f"     {found.advice}"

    def _moved(self, pollution: PollutionReport) -> Iterator[str]:
        yield f"{'':>10}{'as it is':>10}{'moved':>10}"
        for now, then in zip(pollution.curve.points, pollution.moved_curve.points):
            yield f"{self._size(now.size):>10}{now.rate:>10.1%}{then.rate:>10.1%}"
            if now.size >= pollution.prompt + self._report.output:
                break

    def _count(self, units: int) -> str:
        """A number of tokens in words; of an estimate, the units it is made from, too."""
        if not self._estimated:
            return f"{units:,} tokens"
        return f"about {self._number(units)} tokens ({units:,} {self._report.unit})"

    def _number(self, units: int) -> str:
        return f"{round(units / self._report.units_per_token):,}"

    def _size(self, units: int) -> str:
        """A cache size in tokens, by powers of 1,024 where it divides."""
        size = round(units / self._report.units_per_token)
        for letter, power in (("Mi", 20), ("Ki", 10)):
            if size >= 2**power and not size % 2**power:
                return f"{size >> power} {letter}"
        return f"{size:,}"


def _requests(count: int) -> str:
    return f"{count:,} request{'' if count == 1 else 's'}"


def _cut(text: str, end: int, width: int = _SHOWN) -> str:
    """The first characters of a text (`end` 0) or the last ones (`end` -1), on one line."""
    if len(text) <= width:
        return text
    return f"{text[: width - 3]}..." if end == 0 else f"...{text[3 - width :]}"
