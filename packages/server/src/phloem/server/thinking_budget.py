"""A bound on a model's reasoning where nothing else constrains its output.

Where something does, `phloem.grammar.reasoning` has the bound too.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


class ThinkingBudget:
    """Lets everything come, but for one thing: the end of the reasoning comes in time.

    Implements `phloem.grammar.base.Matcher`. After `budget` tokens without the sequence `end` only
    the rest of it may come. With `begin`, that is so where the first token is that one.
    """

    def __init__(self, end: Sequence[int], budget: int, begin: int | None = None) -> None:
        self._end = tuple(end)
        self._budget = budget
        self._begin = begin
        self._tokens: list[int] = []
        self._ended_after: int | None = None
        """Tokens behind which the reasoning has ended; None: it has not."""

    def accept(self, token: int) -> bool:
        """Take the next token; False, and nothing changes, if it may not come."""
        forced = self._forced_token()
        if forced is not None and token != forced:
            return False
        is_answer = not self._tokens and self._begin not in (None, token)
        self._tokens.append(token)
        if is_answer or (self._ended_after is None and self._seen() == len(self._end)):
            self._ended_after = len(self._tokens)
        return True

    def fill_mask(
        self, mask: npt.NDArray[np.int32], row: int, tokens_left: int | None = None
    ) -> None:
        """Write one row of the mask: all tokens, or the one that must come."""
        forced = self._forced_token()
        if forced is None:
            mask[row] = -1
            return
        mask[row] = 0
        mask[row, forced >> 5] = np.uint32(1 << (forced & 31)).view(np.int32)

    def rollback(self, count: int) -> None:
        """Take the last tokens back.

        Raises:
            ValueError: if fewer were accepted.
        """
        if not 0 <= count <= len(self._tokens):
            raise ValueError(
                f"{count} tokens cannot be taken back: {len(self._tokens)} were accepted"
            )
        del self._tokens[len(self._tokens) - count :]
        if self._ended_after is not None and self._ended_after > len(self._tokens):
            self._ended_after = None

    def fork(self) -> ThinkingBudget:
        """An independent one in the same state."""
        other = ThinkingBudget(self._end, self._budget, self._begin)
        other._tokens = self._tokens.copy()
        other._ended_after = self._ended_after
        return other

    @property
    def is_complete(self) -> bool:
        """The text may end anywhere."""
        return True

    @property
    def is_terminated(self) -> bool:
        """It never has to."""
        return False

    def forced(self) -> bytes:
        """The end of the reasoning is tokens, not text."""
        return b""

    def distance_to_end(self) -> int | None:
        """Nobody can tell."""
        return None

    def _forced_token(self) -> int | None:
        is_open = self._begin is None or self._tokens
        if self._ended_after is not None or not is_open or len(self._tokens) < self._budget:
            return None
        return self._end[self._seen()]

    def _seen(self) -> int:
        """How much of the end the latest tokens are."""
        last = tuple(self._tokens[-len(self._end) :])
        for count in range(len(last), 0, -1):
            if last[-count:] == self._end[:count]:
                return count
        return 0
