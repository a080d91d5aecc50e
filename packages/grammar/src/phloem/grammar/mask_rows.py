"""Rows of masks: one of token ids, and the distinct ones of a grammar in one array, so that a batch
is one gather."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from phloem.grammar.dfa.table import Ints


def row_of(
    tokens: Ints | list[int], words: int, base: npt.NDArray[np.int32] | None = None
) -> npt.NDArray[np.int32]:
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
        self._numbers: dict[bytes, int] = {}
        self.array: npt.NDArray[np.int32] = np.zeros((4, self._words), np.int32)
        """[capacity, words]; replaced when it grows."""
        self.generation += 1

    @property
    def is_full(self) -> bool:
        """Whether the limit is reached: clear before adding more."""
        return len(self._numbers) >= self._most

    def add(self, row: npt.NDArray[np.int32]) -> int:
        """The number of a row, new or the one that an equal row got before."""
        key = row.tobytes()
        number = self._numbers.setdefault(key, len(self._numbers))
        if number == len(self.array):
            larger = np.empty((2 * number, self._words), np.int32)
            larger[:number] = self.array
            self.array = larger
        self.array[number] = row
        return number
