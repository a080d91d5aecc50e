"""From an automaton over classes of characters to one over the bytes of UTF-8."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from phloem.grammar.dfa.budget import Budget
from phloem.grammar.dfa.minimize_small import canonical
from phloem.grammar.dfa.plain import Plain, Rows
from phloem.grammar.regex.charset import CharSet

Labelled: TypeAlias = tuple[tuple[int, int, int], ...]
"""Disjoint ranges with a label each, ascending, adjacent ones of different labels."""

SURROGATES: CharSet = ((0xD800, 0xDFFF),)
# The code points of each length, the bits of the lead byte, and the bytes that follow it.
_LENGTHS = (
    (0, 0x7F, 0, 0),
    (0x80, 0x7FF, 0xC0, 1),
    (0x800, 0xD7FF, 0xE0, 2),
    (0xE000, 0xFFFF, 0xE0, 2),
    (0x10000, 0x10FFFF, 0xF0, 3),
)


class Part(NamedTuple):
    """What may come at a place within a character, or before it."""

    inner: Labelled
    """What the bits to come make, labelled from 0 on in the order of their first occurrence."""
    following: int
    """How many bytes come after the next one; -1 before a character."""


_Line: TypeAlias = tuple[int, int, tuple[int, ...]]
"""An edge of a class of bytes: that, the number of its part (0: complete), and its labels."""


class Edge(NamedTuple):
    """Bytes that lead from a part on."""

    first: int
    last: int
    part: Part | None
    """None: the character is complete."""
    labels: tuple[int, ...]
    """Those of the part that it comes from, by its own; the only one if it is complete."""


def encoded(
    rows: Rows, accepting: list[bool], blocks: list[int], classes: Sequence[CharSet], budget: Budget
) -> Plain:
    """The minimal automaton over bytes of one over classes of characters, without surrogates.

    `blocks` are those of equivalent states, with a last -1. States within characters are equivalent
    exactly if the same bytes lead to equivalent states, for none between characters can begin with
    a byte that continues one. So each is made once, and nothing is left to be minimized.

    Raises:
        ConstraintTooComplex: if the budget is spent.
    """
    if all(not chars or chars[-1][1] < 0x80 for chars in classes):
        by_byte = bytearray([len(classes)]) * 256
        for column, chars in enumerate(classes):
            for first, last in chars:
                by_byte[first : last + 1] = bytes([column]) * (last + 1 - first)
        whole = [[*row, -1] for row in rows]
        return canonical(Plain(whole, accepting, bytes(by_byte)), blocks)
    return _Encoder(rows, accepting, blocks, classes).encoded(budget)


class _Encoder:
    """Makes the states in the order in which a search meets them, so their numbers stay."""

    def __init__(
        self, rows: Rows, accepting: list[bool], blocks: list[int], classes: Sequence[CharSet]
    ) -> None:
        self._ranges = sorted(
            (first, last, column) for column, chars in enumerate(classes) for first, last in chars
        )
        self._numbers: dict[Part, int] = {}
        self._parts: list[Part] = []
        """By number; the first is before a character, so 0 can stand for none within one."""
        self._start = blocks[0]
        self._blocks: dict[int, tuple[int, list[int], bool]] = {}
        """By block: the part before a character, its targets by label, whether it accepts."""
        by_pattern: dict[tuple[int, ...], int] = {}
        for row, accepts, block in zip(rows, accepting, blocks, strict=False):
            if block < 0 or block in self._blocks:
                continue
            labels: dict[int, int] = {-1: -1}
            pattern = tuple([labels.setdefault(blocks[at], len(labels) - 1) for at in row])
            part = by_pattern.get(pattern)
            if part is None:
                part = by_pattern[pattern] = self._number(Part(self._labelled(pattern), -1))
            self._blocks[block] = (part, [*labels][1:], accepts)

    def _number(self, part: Part) -> int:
        number = self._numbers.get(part)
        if number is None:
            number = self._numbers[part] = len(self._parts)
            self._parts.append(part)
        return number

    def _labelled(self, pattern: tuple[int, ...]) -> Labelled:
        """The ranges of characters that a state reads, with the labels of its targets."""
        merged: list[tuple[int, int, int]] = []
        for first, last, column in self._ranges:
            label = pattern[column]
            if label < 0:
                continue
            if merged and merged[-1][1] == first - 1 and merged[-1][2] == label:
                merged[-1] = (merged[-1][0], last, label)
            else:
                merged.append((first, last, label))
        return tuple(merged)

    def encoded(self, budget: Budget) -> Plain:
        """The canonical automaton.

        Raises:
            ConstraintTooComplex: if the budget is spent.
        """
        lines, classes, width = self._lines()
        count = max(self._blocks) + 1
        numbers: dict[int | tuple[int, ...], int] = {self._start: 0}
        pending = [self._blocks[self._start]]
        rows: Rows = []
        for part, targets, _ in pending:
            if not len(rows) & 255:
                budget.check(len(pending))
            row = [-1] * width
            for column, inner, labels in lines[part]:
                if len(labels) == 1:
                    target = targets[labels[0]]
                    key: int | tuple[int, ...] = inner * count + target
                else:
                    key = (inner, *[targets[label] for label in labels])
                number = numbers.get(key)
                if number is None:
                    number = numbers[key] = len(pending)
                    if inner:
                        inside = [targets[label] for label in labels]
                        pending.append((inner, inside, False))
                    else:
                        pending.append(self._blocks[target])
                row[column] = number
            rows.append(row)
        budget.check(len(rows))
        return Plain(rows, [accepts for _, _, accepts in pending], classes)

    def _lines(self) -> tuple[list[list[_Line]], bytes, int]:
        """The edges of each part over classes of bytes, the class of each byte, and how many.

        Bytes are in one class if they are on the same edges, which is to say, if no state tells
        them apart: other parts, or other labels, are other states.
        """
        edges = [
            [
                (first, last + 1, 0 if inner is None else self._number(inner), labels)
                for first, last, inner, labels in _edges(part)
            ]
            for part in self._parts  # more are met meanwhile
        ]
        cuts = sorted({0, 256, *(cut for lines in edges for line in lines for cut in line[:2])})
        places = {cut: place for place, cut in enumerate(cuts)}
        holders: list[list[tuple[int, int, tuple[int, ...]]]] = [[] for _ in cuts[1:]]
        for number, each in enumerate(edges):
            for begin, end, into, labels in each:
                for holder in holders[places[begin] : places[end]]:
                    holder.append((number, into, labels))
        merged: dict[tuple[tuple[int, int, tuple[int, ...]], ...], int] = {}
        classes = bytearray()
        for on, first, end in zip(holders, cuts, cuts[1:], strict=False):
            column = merged.setdefault(tuple(on), len(merged))
            classes += bytes([column]) * (end - first)
        lines: list[list[_Line]] = [[] for _ in edges]
        for edge, column in merged.items():
            for number, into, labels in edge:
                lines[number].append((column, into, labels))
        return lines, bytes(classes), len(merged)


@lru_cache(maxsize=256)
def _edges(part: Part) -> tuple[Edge, ...]:
    if part.following >= 0:
        return tuple(_within(part.inner, 0x80, part.following))
    edges: list[Edge] = []
    for low, high, lead, following in _LENGTHS:
        inside = tuple(
            (max(first, low), min(last, high), label)
            for first, last, label in part.inner
            if first <= high and last >= low
        )
        edges += _within(inside, lead, following)
    return tuple(edges)


def _within(inner: Labelled, lead: int, following: int) -> Iterator[Edge]:
    """The edges of a byte with the high bits of `lead`, before `following` others."""
    for first, last, rest in _blocks(inner, 6 * following):
        order: dict[int, int] = {}
        ranges = tuple(
            (low, high, order.setdefault(label, len(order))) for low, high, label in rest
        )
        part = Part(ranges, following - 1) if following else None
        yield Edge(lead | first, lead | last, part, tuple(order))


def _blocks(ranges: Labelled, bits: int) -> list[tuple[int, int, Labelled]]:
    """Ranges cut into blocks of 2**bits: runs (first, last block, what is within each)."""
    size = 1 << bits
    runs: list[tuple[int, int, Labelled]] = []
    for first, last, label in ranges:
        while first <= last:
            block = first >> bits
            begin = block << bits
            if first == begin and last >= begin + size - 1:
                final = ((last + 1) >> bits) - 1
                runs.append((block, final, ((0, size - 1, label),)))
                first = (final + 1) << bits
                continue
            end = min(last, begin + size - 1)
            piece = (first - begin, end - begin, label)
            if runs and runs[-1][1] == block:
                runs[-1] = (block, block, (*runs[-1][2], piece))
            else:
                runs.append((block, block, (piece,)))
            first = end + 1
    return runs
