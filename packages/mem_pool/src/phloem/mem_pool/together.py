"""Leases that get on together, by one token each with every step, as those of a decode do.

The weights of a step push all else out of the processor's caches, so that between two steps each
use of numpy takes ten times as long as in a loop. So slots are taken for several steps at once, and
what was reserved and committed is counted here, and entered into the watermarks when somebody reads
them.

What is taken ahead is nobody's yet: it counts as free, is taken of what is free only, and goes back
before anything else would have to be evicted, and before anything else happens to a lease.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from phloem.mem_pool.lease import Rows, Watermarks, check_all_open, counted
from phloem.mem_pool.room import Room
from phloem.mem_pool.rows import RowTable
from phloem.mem_pool.slots import SlotAllocator, Slots

_MOST_AHEAD = 32
"""Steps for which slots are taken at once, after as many; with pages of more than one token a step
seldom takes any.
"""


class Together:
    """See `CacheManager.together`, which makes it."""

    def __init__(
        self,
        rows: Rows,
        table: RowTable,
        slots: SlotAllocator,
        room: Room,
        marks: Watermarks,
        is_open: npt.NDArray[np.bool_],
    ) -> None:
        self._rows = rows
        self._table = table
        self._flat = table.table.reshape(-1)
        self._slots = slots
        self._room = room
        self._marks = marks
        self._is_open = is_open
        self._steps = 0
        """Steps that were reserved so far."""
        self._ahead: list[Slots] = []
        """Of steps to come, the next one last; empty but while nothing else has happened."""
        self._spare = 0
        """What all leases have reserved and not committed, as far as that is known."""
        self._reserved = self._committed = 0
        """Not entered yet."""

    def extend(self) -> Slots | None:
        """As `CacheManager.extend_rows` by one slot.

        Returns:
            int32 [k], the slots, not to be written to; None where memory does not suffice.

        Raises:
            ValueError: a row is too short.
            OwnershipError: a lease was closed.
        """
        if not self._ahead and not self._take():
            return None
        self._steps += 1
        self._spare += 1
        self._reserved += 1
        return self._ahead.pop()

    def commit(self) -> bool:
        """As `CacheManager.commit_rows` by one slot; False, and nothing was done, where that has to
        be asked because something else has happened since the last `extend`.
        """
        if not self._spare:
            return False
        self._spare -= 1
        self._committed += 1
        return True

    @property
    def ahead(self) -> int:
        """Slots taken for steps to come."""
        return len(self._ahead) * len(self._rows)

    def enter(self) -> None:
        """Into the watermarks, what happened since this was done last."""
        reserved, committed = self._reserved, self._committed
        self._reserved = self._committed = 0
        if reserved:
            self._marks.allocated[self._rows] += counted(reserved)
        if committed:
            self._marks.committed[self._rows] += counted(committed)

    def give_back(self) -> bool:
        """Free what was taken ahead, so that it is handed out again in the same order; whether
        there was any.
        """
        if not self._ahead:
            return False
        ahead, self._ahead = self._ahead, []
        self._slots.free(np.concatenate(ahead[::-1]))
        return True

    def end(self) -> None:
        """Something else is about to happen to a lease."""
        self.enter()
        self.give_back()
        self._spare = 0

    def _take(self) -> bool:
        """Slots for the next step, and for some more if they are free."""
        rows, marks, slots = self._rows, self._marks, self._slots
        check_all_open(rows, self._is_open)
        marks.gets_on(self)
        starts = marks.allocated[rows]
        longest = int(starts.max())
        self._table.check_length(longest + 1)
        if not self._room.make(slots.pages_needed_by_all(starts, 1)):
            return False
        first = rows * self._table.max_len + starts
        if slots.page_size > 1:
            # Where a sequence is empty this reads another one's slot, which is not looked at.
            fresh = slots.alloc_extend_all(self._flat[first - 1], starts, 1)
            assert fresh is not None, "there was room above"
            fresh = fresh.reshape(1, -1)
        else:
            free, room = slots.available // len(rows), self._table.max_len - longest
            steps = min(max(self._steps, 1), _MOST_AHEAD, free, room)
            taken = slots.alloc_extend(-1, 0, steps * len(rows))
            assert taken is not None, "as many were free"
            fresh = taken.reshape(steps, -1)
        self._flat[np.add.outer(np.arange(len(fresh)), first)] = fresh
        self._ahead = list(fresh)[::-1]
        self._spare = int((starts - marks.committed[rows]).min())
        return True
