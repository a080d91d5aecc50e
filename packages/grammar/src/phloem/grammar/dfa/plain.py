"""Small automata as lists: what `Table` holds in arrays, without what each array costs to make.

An automaton of a few dozen states is compiled, asked and often thrown away before any array of it
is needed; a sweep of the vocabulary is the first to ask for one.
"""

from __future__ import annotations

from itertools import chain
from typing import NamedTuple

import numpy as np

from phloem.grammar.dfa.table import Table

Rows = list[list[int]]


class Plain(NamedTuple):
    """A deterministic automaton whose start is state 0, as `Table` is one."""

    rows: Rows
    """By state, by class: the next state, or -1."""
    accepting: list[bool]
    classes: bytes
    """[256]: the class of each byte."""


def table_of(plain: Plain) -> Table:
    """The same in arrays."""
    rows, accepting, classes = plain
    return Table(
        np.array(rows, np.int32),
        np.array(accepting, bool),
        np.frombuffer(classes, np.uint8),
    )


def plain_of(table: Table) -> Plain:
    """The same in lists."""
    return Plain(table.next.tolist(), table.accepting.tolist(), table.classes.tobytes())


def content(plain: Plain) -> bytes:
    """The bytes of the three arrays of `table_of`, one behind the other."""
    cells = sum(map(len, plain.rows))
    rows = np.fromiter(chain.from_iterable(plain.rows), np.int32, cells)
    return b"".join((rows.tobytes(), bytes(plain.accepting), plain.classes))


def joined_classes(left: bytes, right: bytes) -> tuple[list[tuple[int, int]], bytes]:
    """Classes of bytes that both agree on, each as those of the two; and the class of each byte."""
    by_byte = list(zip(left, right, strict=True))
    pairs = list(dict.fromkeys(by_byte))
    numbers = {pair: number for number, pair in enumerate(pairs)}
    return pairs, bytes(map(numbers.__getitem__, by_byte))


def numbered(rows: Rows, accepting: list[bool], columns: list[int], classes: list[int]) -> Plain:
    """The canonical automaton of rows whose states are in order: equal columns become one.

    `columns` are the classes of the rows' columns, in the order in which `classes` meets them.
    """
    merged: dict[tuple[int, ...], int] = {}
    by_column = {
        column: merged.setdefault(values, len(merged))
        for column, values in zip(columns, zip(*rows, strict=True), strict=True)
    }
    if len(merged) < len(columns):
        rows = [list(row) for row in zip(*merged, strict=True)]
    return Plain(rows, accepting, bytes([by_column[column] for column in classes]))
