"""Rows of masks: one of token ids, and the distinct ones of a grammar in one array, so that a batch
is one gather."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from phloem.grammar.dfa.table import Ints

Row: TypeAlias = npt.NDArray[np.int32]


def row_of(tokens: Ints | list[int], words: int, base: Row | None = None) -> Row:
    """Some tokens, and those of another row, as one row of a mask: int32 [words]."""
    if isinstance(tokens, list) and len(tokens) <= _FEW:
        row = bytearray(4 * words) if base is None else bytearray(base.astype("<i4", copy=False))
        for token in tokens:
            row[token >> 3] |= 1 << (token & 7)
        return np.frombuffer(row, "<i4").astype(np.int32, copy=False)
    if base is not None:
        return base | row_of(tokens, words)
    bits = np.zeros(words * 32, bool)
    bits[tokens] = True
    return np.packbits(bits, bitorder="little").view("<i4").astype(np.int32, copy=False)


_FEW = 128
"""So few tokens are written faster one by one."""
_FIRST = 64
"""Room for so many rows is there from the beginning: unused memory costs nothing, copies do."""
_SWAPPED = 0 if sys.byteorder == "little" else 3
"""What tells the bytes of a word in memory from those of its bits in ascending order."""


class MaskRows:
    """Rows of `words` int32, up to about `limit` bytes of them."""

    def __init__(self, words: int, limit: int) -> None:
        self._most = max(limit // max(4 * words, 1), 1)
        self._words = words
        self.generation = 0
        """Row numbers are good for one generation."""
        self.clear()

    def clear(self) -> None:
        """Forget all rows; their numbers are given anew."""
        self._numbers: dict[Any, int] = {}
        self._bases: list[Row | None] = []
        """By row; what is kept alive is no other's `id`."""
        self._take(np.empty((min(_FIRST, self._most), self._words), np.int32))
        self.generation += 1

    @property
    def is_full(self) -> bool:
        """Whether the limit is reached: clear before adding more."""
        return len(self._numbers) >= self._most

    def add(self, tokens: list[int], bases: Sequence[Row]) -> int:
        """The number of the row of some tokens and those of other rows, which stay as they are.

        Rows that were made of the same are one. To make a row of few tokens and compare it with
        others would take longer than all the rest of finding out a mask.
        """
        if len(bases) > 1 or len(tokens) > _FEW:
            row = row_of(tokens, self._words, bases[0] if bases else None)
            for other in bases[1:]:
                row |= other
            return self._number(row.tobytes(), [], row)
        base = bases[0] if bases else None
        tokens.sort()
        return self._number((id(base), *tokens), tokens, base)

    def _number(self, key: Any, tokens: Sequence[int], base: Row | None) -> int:
        number = self._numbers.get(key)
        if number is not None:
            return number
        number = self._numbers[key] = len(self._numbers)
        self._bases.append(base)
        if number == len(self.array):
            larger = np.empty((2 * number, self._words), np.int32)
            larger[:number] = self.array
            self._take(larger)
        self.array[number] = 0 if base is None else base
        at = 4 * self._words * number
        for token in tokens:
            self._bytes[at + (token >> 3 ^ _SWAPPED)] |= 1 << (token & 7)
        return number

    def _take(self, array: Row) -> None:
        self.array = array
        """[capacity, words]; replaced when it grows."""
        self._bytes = array.data.cast("B")
