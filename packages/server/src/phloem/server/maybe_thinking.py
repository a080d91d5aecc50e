"""Constraints on outputs that may begin with reasoning, which their first token tells."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from phloem.grammar.base import Matcher


class MaybeThinking:
    """One of two matchers: which, the first token decides. Implements `Matcher`."""

    def __init__(self, begin: int, thinking: Matcher, answer: Matcher) -> None:
        """`thinking` follows an output that the token `begin` opens, `answer` any other; both are
        at the beginning of a text.
        """
        self._begin = begin
        self._thinking = thinking
        self._answer = answer
        self._followed: Matcher | None = None
        self._taken = 0

    def accept(self, token: int) -> bool:
        """Take the next token; False, and nothing changes, if it may not come."""
        matcher = self._followed or (self._thinking if token == self._begin else self._answer)
        accepted = matcher.accept(token)
        if accepted:
            self._followed = matcher
            self._taken += 1
        return accepted

    def fill_mask(
        self, mask: npt.NDArray[np.int32], row: int, tokens_left: int | None = None
    ) -> None:
        """Write one row of the mask; of the first token, with that which opens the reasoning."""
        self._current.fill_mask(mask, row, tokens_left)
        if self._followed is None:
            mask[row, self._begin >> 5] |= np.uint32(1 << (self._begin & 31)).view(np.int32)

    def rollback(self, count: int) -> None:
        """Take the last tokens back.

        Raises:
            ValueError: if fewer were accepted.
        """
        self._current.rollback(count)
        self._taken -= count
        if not self._taken:
            self._followed = None

    def fork(self) -> MaybeThinking:
        """An independent matcher in the same state."""
        other = MaybeThinking(self._begin, self._thinking.fork(), self._answer.fork())
        other._taken = self._taken
        if self._followed is not None:
            thinks = self._followed is self._thinking
            other._followed = other._thinking if thinks else other._answer
        return other

    @property
    def is_complete(self) -> bool:
        """Whether the text may end here."""
        return self._current.is_complete

    @property
    def is_terminated(self) -> bool:
        """Whether nothing may follow."""
        return self._current.is_terminated

    def forced(self) -> bytes:
        """The text that must come next; none where reasoning may come instead."""
        return b"" if self._followed is None else self._followed.forced()

    def distance_to_end(self) -> int | None:
        """Tokens that suffice for the rest."""
        return self._current.distance_to_end()

    @property
    def _current(self) -> Matcher:
        return self._followed or self._answer
