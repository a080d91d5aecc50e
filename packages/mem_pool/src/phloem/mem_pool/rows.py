"""The row table: which slot holds which position of each sequence. It owns rows, never slots."""

from __future__ import annotations

import heapq

import numpy as np
import numpy.typing as npt

from phloem.mem_pool.errors import OwnershipError


class RowTable:
    """A fixed number of rows, each with room for the slots of one sequence.

    The lowest free row is handed out first, so equal histories give equal rows. A row is not wiped
    when it changes hands: a reader that keeps a row index compares `generation[row]` with the one
    it saw.

    Attributes:
        table: int32 [max_rows, max_len], `table[row, position]` is the slot of that position. Rows
            that were never used cost no memory.
        generation: int64 [max_rows], how often each row has been handed out.
    """

    table: npt.NDArray[np.int32]
    generation: npt.NDArray[np.int64]

    def __init__(self, max_rows: int, max_len: int) -> None:
        if max_rows < 1 or max_len < 1:
            raise ValueError(
                f"a row table of {max_rows} rows of {max_len} tokens holds nothing: "
                "give at least one row of at least one token"
            )
        self.table = np.zeros((max_rows, max_len), np.int32)
        self.generation = np.zeros(max_rows, np.int64)
        self._max_len = max_len
        self._free = list(range(max_rows))
        self._in_use = [False] * max_rows

    @property
    def max_rows(self) -> int:
        """Rows in all."""
        return len(self.table)

    @property
    def max_len(self) -> int:
        """Tokens that one row has room for."""
        return self._max_len

    @property
    def available(self) -> int:
        """Rows that are free."""
        return len(self._free)

    def check_length(self, length: int) -> None:
        """Raise `ValueError` if a sequence of `length` tokens does not fit into a row."""
        if length > self._max_len:
            raise ValueError(
                f"a sequence of {length} tokens does not fit into a row of {self._max_len}: "
                "shorten it or make the row table with a larger max_len"
            )

    def alloc(self) -> int | None:
        """Take the lowest free row and raise its generation; None when all are taken."""
        if not self._free:
            return None
        row = heapq.heappop(self._free)
        self._in_use[row] = True
        self.generation[row] += 1
        return row

    def free(self, row: int) -> None:
        """Give a row back.

        Raises:
            OwnershipError: the row is free already, or there is no such row.
        """
        if not 0 <= row < self.max_rows:
            raise OwnershipError(
                f"row {row} is not of this table: its rows are 0 to {self.max_rows - 1}"
            )
        if not self._in_use[row]:
            raise OwnershipError(f"row {row} is free already: a row is given back once")
        self._in_use[row] = False
        heapq.heappush(self._free, row)
