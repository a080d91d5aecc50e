"""The masks of a batch: which tokens each of its constrained rows may get.

Owns the arrays, which are used again for each step, and when a stop id may come. What is allowed is
each row's matcher's to say.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from phloem.scheduler.guide import ConstraintBroken, Guide
from phloem.scheduler.ports import TokenMasks
from phloem.scheduler.request import Request

_ROWS_AT_FIRST = 16


class MaskFiller:
    """Fills the masks of one batch after the other, in the same arrays."""

    def __init__(self, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        self._words = -(-vocab_size // 32)
        self._eos_token_ids = tuple(eos_token_ids)
        self._bits = np.empty((_ROWS_AT_FIRST, self._words), np.int32)

    def fill(self, rows: Sequence[tuple[int, Request]], ends: Sequence[int]) -> TokenMasks | None:
        """The masks of some rows of a batch, ascending; None if there are none.

        `ends` are the tokens, by row of the batch, that its requests have by now: what they tell
        themselves would have to be entered first. A row whose matcher fails, or where nothing of
        its result counts, gets none. The arrays are valid until the next call.
        """
        if len(rows) > len(self._bits):
            self._bits = np.empty((2 * len(rows), self._words), np.int32)
        index: list[int] = []
        for i, request in rows:
            guide = request.guide
            assert guide is not None, f"{request.rid} has no constraint"
            if guide.void or request.finish_reason is not None:
                continue
            try:
                self._fill_row(len(index), request, guide, ends[i] - request.num_prompt)
            except ConstraintBroken as error:
                guide.error = str(error)
            else:
                index.append(i)
        if not index:
            return None
        return TokenMasks(np.array(index, np.int32), self._bits[: len(index)])

    def _fill_row(self, row: int, request: Request, guide: Guide, output: int) -> None:
        params = request.params
        guide.fill(self._bits, row, request.max_new_tokens - output)
        if output < params.min_new_tokens:
            self._put_off(self._bits[row], (*self._eos_token_ids, *params.stop_token_ids))
        elif params.ignore_eos:
            self._put_off(self._bits[row], self._eos_token_ids)

    @staticmethod
    def _put_off(bits: npt.NDArray[np.int32], stop_ids: Sequence[int]) -> None:
        """Forbid tokens that would end the output, unless there are no others."""
        kept = bits.copy()
        unsigned = kept.view(np.uint32)
        for token in stop_ids:
            unsigned[token // 32] &= ~np.uint32(1 << token % 32)
        if kept.any():
            bits[:] = kept
