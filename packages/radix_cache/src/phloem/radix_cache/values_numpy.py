"""The value adapter for numpy arrays; imported only when it is chosen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[Any]


class NumpyValues:
    """Arrays whose first axis is tokens. A cut is a copy: a view would keep its base alive."""

    def __init__(self, empty: Values | None = None) -> None:
        self._empty = np.empty(0, dtype=np.int32) if empty is None else empty.copy()

    def length(self, values: Values) -> int:
        """Length of the first axis."""
        return len(values)

    def cut(self, values: Values, start: int, stop: int) -> Values:
        """A copy of the rows [start, stop)."""
        part: Values = values[start:stop].copy()
        return part

    def join(self, parts: Sequence[Values]) -> Values:
        """One new array; without parts, an empty one like the first value seen, or int32 [0]."""
        return np.concatenate(parts) if parts else self._empty.copy()
