"""A lease: one sequence's claim on a row and on slots; plain data that `CacheManager` changes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from phloem.mem_pool.errors import OwnershipError, shortened
from phloem.mem_pool.tree import Namespace, TreeHandle, TreeLock

Rows = npt.NDArray[np.intp]
"""intp [k], rows of open leases, none of them twice."""


class GettingOn(Protocol):
    """Leases of which not all that has happened is in the watermarks; see `Together`."""

    @property
    def ahead(self) -> int:
        """Slots taken for steps to come, which count as free."""
        ...

    def enter(self) -> None:
        """Bring the watermarks up to date."""
        ...

    def give_back(self) -> bool:
        """Free what was taken ahead; whether there was any."""
        ...

    def end(self) -> None:
        """Both: something else is about to happen to a lease."""
        ...


class Watermarks:
    """How far all sequences have come, as arrays by row, so that many can be moved on at once.

    What some of them did together is entered when it is read. An array that was read does not
    follow what they do afterwards: read it anew.

    Attributes:
        protected: int32 [max_rows], as in `Lease`, like all; meaningless where no lease is open.
    """

    protected: npt.NDArray[np.int32]

    def __init__(self, max_rows: int) -> None:
        self._marks = np.zeros((3, max_rows), np.int32)
        self.protected, self._committed, self._allocated = self._marks
        self._on: GettingOn | None = None

    @property
    def committed(self) -> npt.NDArray[np.int32]:
        """int32 [max_rows]."""
        self.enter()
        return self._committed

    @property
    def allocated(self) -> npt.NDArray[np.int32]:
        """int32 [max_rows]."""
        self.enter()
        return self._allocated

    def of(self, row: int) -> npt.NDArray[np.int32]:
        """int32 [3], a view: a row's protected, committed and allocated, as far as entered."""
        return self._marks[:, row]

    @property
    def ahead(self) -> int:
        """Slots that nobody has yet, and that are not in the allocator."""
        return 0 if self._on is None else self._on.ahead

    def enter(self) -> None:
        """Bring all up to date."""
        if self._on is not None:
            self._on.enter()

    def gets_on(self, on: GettingOn) -> None:
        """From now on it is these that get on; others are over."""
        if self._on is not on:
            self.settle()
            self._on = on

    def settle(self) -> None:
        """Nobody gets on any more: something else happens to a lease."""
        on, self._on = self._on, None
        if on is not None:
            on.end()

    def give_back(self) -> bool:
        """Free what was taken ahead; whether there was any."""
        return self._on is not None and self._on.give_back()


class _Mark:
    """An attribute of a lease that stands in its `marks`."""

    def __init__(self, index: int) -> None:
        self._index = index

    def __get__(self, lease: Lease, owner: type[Lease]) -> int:
        lease.watermarks.enter()
        return int(lease.marks[self._index])

    def __set__(self, lease: Lease, value: int) -> None:
        lease.watermarks.enter()
        lease.marks[self._index] = value


@dataclass(frozen=True, slots=True)
class Retention:
    """That a prefix is evicted after all that has none, while it lasts; it pins nothing."""

    seconds: float
    """From each time that it is published or used anew."""
    tokens: int | None = None
    """Length of the prefix; None: all that is known when its lease opens."""


class Brought(NamedTuple):
    """Tokens of a prefix that were brought to the device, by where they were found."""

    host: int
    store: int


@dataclass(slots=True, eq=False)
class Lease:
    """Who owns the slots that stand in a row, by position.

    ::

        0              protected              committed           allocated            max_len
        |  the tree's,  |  ours: valid KV,     |  ours: reserved,   |  unused            |
        |  locked by us |  not in the tree yet |  no valid KV yet   |                    |

    `protected <= committed <= allocated`, in tokens. `protected` is a multiple of the page; the
    last page that is ours may be partial, and belongs to us whole.
    """

    row: int
    generation: int
    """The row's generation at `open`; the table's differs once the row went to somebody else."""
    namespace: Namespace
    marks: npt.NDArray[np.int32] = field(repr=False)
    """int32 [3], the three watermarks as far as entered: the row's own in the manager's arrays
    while the lease is open, a copy afterwards.
    """
    watermarks: Watermarks = field(repr=False)
    """These arrays."""
    lock: TreeLock | None = None
    """The tree's receipt that keeps `[0, protected)` there; None while that is empty."""
    prefix: TreeHandle | None = None
    """The tree's handle of `[0, protected)`; None while that is empty."""
    priority: int = 0
    """What the tree is told with all that is published; the higher, the longer it may be kept."""
    retained: int = 0
    """Tokens at the beginning that the tree is asked to evict last."""
    retain_for: float | None = None
    """Seconds for which it is; None: for none."""
    brought: Brought | None = None
    """What of the prefix was not on the device when the lease was opened; None: nothing."""
    closed: bool = False

    protected = _Mark(0)
    committed = _Mark(1)
    allocated = _Mark(2)


def check_open(lease: Lease, leases: Mapping[int, Lease]) -> None:
    """Raise `OwnershipError` if a lease is none of the open ones, which are given by row."""
    if lease.closed or leases.get(lease.row) is not lease:
        raise OwnershipError(
            f"the lease of row {lease.row}, generation {lease.generation}, is closed or of "
            "another manager: a lease is closed once and not used afterwards"
        )


def check_all_open(rows: Rows, is_open: npt.NDArray[np.bool_]) -> None:
    """Raise `OwnershipError` if one of `rows` has no open lease."""
    if False in is_open[rows].tolist():  # the first `all` takes as long as this whole function
        closed = rows[~is_open[rows]]
        raise OwnershipError(
            f"no lease is open on rows {shortened(closed)}: leave out rows whose leases are closed"
        )


_ONE = np.ones(1, np.int32)


def counted(n: int) -> npt.NDArray[np.int32]:
    """int32 [1], to be added to marks: of an int numpy would make an array first, and where all is
    cold, between two steps of a model, that takes as long as four sums of arrays.
    """
    return _ONE if n == 1 else np.full(1, n, np.int32)


def check_none_open(leases: Iterable[Lease]) -> None:
    """Raise `OwnershipError` if there is any lease."""
    rows = [lease.row for lease in leases]
    if rows:
        raise OwnershipError(
            f"rows {rows} still use the cache: close their leases before it is dropped"
        )
