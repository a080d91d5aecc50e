"""Requests that decode together, and what of that stays the same from step to step.

The weights of a step push the rest out of the processor's caches, so that between two steps it
counts how much code is run at all, of numpy above all. Mostly a decode is the one before with one
token more, of the same requests: what is known of those is found once, the arrays of some steps are
made at a time, and that holds until the table's `epoch` says that anything else has happened to
anybody.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from phloem.mem_pool import CacheManager
from phloem.scheduler.ports import RELAYED
from phloem.scheduler.sampling import SamplingBatch
from phloem.scheduler.table import Bools, DecodeRows, Ints, RequestTable, Rows

_MOST_AHEAD = 32
"""Steps whose arrays are made at once, after as many."""


class DecodeSet:
    """Requests that decode together, one token each.

    Its arrays are shared by all batches that are made of it, so nobody changes them.

    Attributes:
        epoch: the table's when it was made.
        rows: intp [n], in order of admission.
        requests: who holds them.
        books: what the table has yet to enter of them.
        leases: theirs, which get on together.
        watched: bool [n], see `RequestTable`; None where nobody is.
        shaped: which of the n are; see `RequestTable`.
        guided: those that a constraint holds for, with their indices.
        followed: those that are watched for that alone, with their indices and guides.
        is_plain: whether nobody is watched for anything else.
        stop_ids: of all of them together.
        relayed: int32 [n], `input_ids` where the step before is in flight.
        newest: int32 [n], `input_ids` where it is not; None: the table has them.
    """

    def __init__(self, table: RequestTable, manager: CacheManager, rows: Rows) -> None:
        self.epoch = table.epoch
        self.rows = rows
        self.requests = tuple(table.requests(rows))
        self.books = DecodeRows(rows)
        self.leases = manager.together(rows)
        self.stop_ids = table.stop_ids(rows)
        watched = table.watched[rows]
        self.watched: Bools | None = watched if watched.any() else None
        self.shaped: list[int] = np.flatnonzero(table.shaped[rows]).tolist()
        self.guided = [(i, r) for i, r in enumerate(self.requests) if r.guide is not None]
        only = table.only_guided[rows].tolist()
        self.followed = [(i, r, r.guide) for i, r in self.guided if only[i] and r.guide is not None]
        self.is_plain = len(self.followed) == watched.tolist().count(True)
        self.sampling = table.sampling.batch(rows)
        self.batch_rows = rows.astype(np.int32)
        self.query_lens = np.ones(len(rows), np.int32)
        self.samples = np.ones(len(rows), np.bool_)
        self.relayed = np.full(len(rows), RELAYED, np.int32)
        self.newest: Ints | None = None
        self._steps = 0
        self._steps_left = int((table.end[rows] - table.length(rows)).min())
        self._next: Ints | None = None
        self._ahead: list[Decode] = []

    def settled(self, table: RequestTable) -> bool:
        """Whether nothing but decodes of one token each has happened to its requests."""
        return self.epoch == table.epoch and self.is_plain

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

    def next(self, slots: Ints) -> Decode:
        """That step, whose tokens go to `slots` [n]."""
        assert self._next is not None, "the step before did not go out: ask `goes_on` first"
        if not self._ahead:
            self._ahead = self._decodes(self._next, min(self._steps, _MOST_AHEAD))[::-1]
        decode, self._next = self._ahead.pop(), None
        decode.slots = slots
        decode.last = self._steps_left <= 1
        return decode

    def decode(self, starts: Ints) -> Decode:
        """A step of it that computes the tokens at `starts` [n]."""
        self._ahead = []
        (decode,) = self._decodes(starts, 1)
        decode.last = self._steps_left <= 1
        return decode

    def _decodes(self, starts: Ints, steps: int) -> list[Decode]:
        """The first computes the tokens at `starts` [n], each other one the tokens behind."""
        at = list(np.add.outer(np.arange(steps + 2, dtype=np.int32), starts))
        return [
            Decode(self, at[i], at[i + 1], at[i + 2], self.sampling.at(at[i + 1]))
            for i in range(steps)
        ]

    def launched(self, ends: Ints) -> None:
        """A step of it goes out that computes up to `ends` [n]."""
        self.newest = None
        self._next = ends
        self._steps += 1
        self._steps_left -= 1


@dataclass(slots=True, eq=False)
class Decode:
    """The part of a step in which each request computes the newest of its tokens."""

    members: DecodeSet
    starts: Ints
    """[n] the position of that token."""
    ends: Ints
    """[n] the position of the one that the step yields."""
    num_tokens: Ints
    """[n] tokens of each with that one."""
    sampling: SamplingBatch
    """The parameters, but for what rows that are shaped need."""
    slots: Ints | None = None
    """[n] where the KV goes; None: the row table says so."""
    last: bool = False
    """Whether what the step yields is the last that somebody may get."""
    followed: list[int] | None = None
    """Which of those that are followed got one token and go on; None: not known yet."""
    recut: dict[int, int] = field(default_factory=dict)
    """Of these, the tokens of those that got another one than the sampled."""

    def __len__(self) -> int:
        return len(self.starts)
