"""Requests that decode together, and what of that stays the same from step to step.

The weights of a step push the rest out of the processor's caches, so that between two steps it
counts how much of numpy is run at all; a plain `1`, of which it makes an array first, takes as long
as four sums of arrays. Mostly a decode is the one before with one token more, of the same requests:
what is known of those is found once, and holds until the table's `epoch` says that anything else
has happened to anybody.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from phloem.scheduler.table import Bools, Ints, RequestTable, Rows


class DecodeSet:
    """Requests that decode together, one token each.

    Its arrays are shared by all batches that are made of it, so nobody changes them.

    Attributes:
        epoch: the table's when it was made.
        rows: intp [n], in order of admission.
        requests: who holds them.
        at: where they stand in the table.
        watched: bool [n], see `RequestTable`; None where nobody is.
        shaped: which of the n are; see `RequestTable`.
        guided: those that a constraint holds for, with their indices.
        stop_ids: of all of them together.
    """

    def __init__(self, table: RequestTable, rows: Rows) -> None:
        self.epoch = table.epoch
        self.rows = rows
        self.requests = tuple(table.requests(rows))
        self.at = table.decode_rows(rows)
        self.stop_ids = table.stop_ids(rows)
        watched = table.watched[rows]
        self.watched: Bools | None = watched if watched.any() else None
        self.shaped: list[int] = np.flatnonzero(table.shaped[rows]).tolist()
        self.guided = [(i, r) for i, r in enumerate(self.requests) if r.guide is not None]
        self.sampling = table.sampling.batch(rows)
        self.batch_rows = rows.astype(np.int32)
        self.query_lens = np.ones(len(rows), np.int32)
        self.samples = np.ones(len(rows), np.bool_)
        self._steps_left = int((table.end[rows] - table.length(rows)).min())
        self._next: Ints | None = None

    def settled(self, table: RequestTable) -> bool:
        """Whether nothing but decodes of one token each has happened to its requests."""
        return self.epoch == table.epoch and self.watched is None

    def goes_on(self, table: RequestTable, held: Rows) -> bool:
        """Whether the next step is the same with one token more: its requests are all that hold
        memory, the step before went out, and none of them has got all its tokens.
        """
        return (
            self._next is not None
            and self.rows is held
            and self.settled(table)
            and self._steps_left > 0
        )

    def next(self) -> Decode:
        """That step."""
        assert self._next is not None, "the step before did not go out: ask `goes_on` first"
        starts, self._next = self._next, None
        return self.decode(starts)

    def decode(self, starts: Ints) -> Decode:
        """A step of it that computes the tokens at `starts` [n]."""
        return Decode(self, starts, starts + self.query_lens, last=self._steps_left <= 1)

    def launched(self, ends: Ints) -> None:
        """A step of it goes out that computes up to `ends` [n]."""
        self._next = ends
        self._steps_left -= 1


@dataclass(frozen=True, slots=True)
class Decode:
    """The part of a step in which each request computes the newest of its tokens."""

    members: DecodeSet
    starts: Ints
    """[n] the position of that token."""
    ends: Ints
    """[n] the position of the one that the step yields."""
    last: bool
    """Whether that is the last that somebody may get."""

    def __len__(self) -> int:
        return len(self.starts)
