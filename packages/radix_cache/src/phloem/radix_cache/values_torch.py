"""The value adapter for torch tensors; imported only when it is chosen."""

from __future__ import annotations

from collections.abc import Sequence

import torch


class TorchValues:
    """Tensors whose first axis is tokens. A cut is a clone, outside any autograd graph: a view
    would keep its base alive, and a graph all that it was computed from.
    """

    def __init__(self, empty: torch.Tensor | None = None) -> None:
        self._empty = torch.empty(0, dtype=torch.int64) if empty is None else empty.detach().clone()

    def length(self, values: torch.Tensor) -> int:
        """Length of the first axis."""
        return len(values)

    def cut(self, values: torch.Tensor, start: int, stop: int) -> torch.Tensor:
        """A clone of the rows [start, stop)."""
        return values[start:stop].detach().clone()

    def join(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """One new tensor; without parts, an empty one like the first value seen, or int64 [0]."""
        return torch.cat(list(parts)) if parts else self._empty.clone()
