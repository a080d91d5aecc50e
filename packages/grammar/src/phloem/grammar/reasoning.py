"""Constraints that begin after a model has finished thinking, around a matcher of any backend.

Thinking is free text up to a sequence of tokens, such as the one special token `</think>`; the
constraint binds from the token right behind it. A budget bounds the thinking: when it is used up,
the rest of that sequence is the only thing that may come.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from phloem.grammar.base import Matcher
from phloem.grammar.errors import GrammarError
from phloem.grammar.mask_rows import row_of
from phloem.grammar.vocabulary import Vocabulary


class Reasoning:
    """How a model ends its thinking. Made once, wraps the matcher of every request.

    Args:
        end: the ids of the end-of-thinking sequence; special tokens are fine.

    Raises:
        GrammarError: if it is empty, or has a stop token or one that the vocabulary has not got.
    """

    def __init__(self, vocabulary: Vocabulary, end: Sequence[int]) -> None:
        known = {id for id, token in enumerate(vocabulary.tokens) if token is not None}
        known |= vocabulary.special_ids
        known -= set(vocabulary.stop_ids)
        if not end or not known.issuperset(end):
            raise GrammarError(
                f"thinking cannot end with the tokens {list(end)}: give ids of the vocabulary that "
                "are no stop tokens"
            )
        self.end = tuple(end)
        self.free = row_of(sorted(known), vocabulary.words)
        """int32 [words]: the tokens that thinking may consist of; no stop tokens, no holes."""
        self._falls_back_to = _borders(self.end)

    def wrap(self, matcher: Matcher, budget: int | None = None) -> ReasoningMatcher:
        """A matcher that thinks first.

        Args:
            matcher: at the beginning of a text; it must not be used by others any more.
            budget: after so many tokens the end-of-thinking sequence is forced; None is no limit.

        Raises:
            GrammarError: if the budget is negative.
        """
        if budget is not None and budget < 0:
            raise GrammarError(f"a thinking budget of {budget} tokens: give 0 or more, or none")
        return ReasoningMatcher(self, matcher, budget, [0])

    def advance(self, seen: int, token: int) -> int:
        """How much of the end sequence was seen after one more token (Knuth, Morris, Pratt)."""
        while seen and self.end[seen] != token:
            seen = self._falls_back_to[seen - 1]
        return seen + 1 if self.end[seen] == token else 0

    def allows(self, token: int) -> bool:
        """Whether thinking may contain a token."""
        word = token >> 5
        return 0 <= word < len(self.free) and bool((int(self.free[word]) >> (token & 31)) & 1)


class ReasoningMatcher:
    """A `Matcher` in two phases: thinking, then what the wrapped matcher says.

    Made by `Reasoning.wrap`.
    """

    def __init__(
        self, reasoning: Reasoning, inner: Matcher, budget: int | None, seen: Sequence[int]
    ) -> None:
        self._reasoning = reasoning
        self._inner = inner
        self._budget = budget
        self._seen = list(seen)
        """How much of the end sequence was seen, before the first and after each token of the
        thinking; the last is all of it where the thinking is over."""
        self._taken = 0
        """Tokens that the wrapped matcher took."""

    @property
    def is_thinking(self) -> bool:
        """Whether the constraint has not begun."""
        return self._seen[-1] < len(self._reasoning.end)

    def accept(self, token: int) -> bool:
        """Take the next token; False, and nothing changes, if it may not come."""
        if not self.is_thinking:
            accepted = self._inner.accept(token)
            self._taken += accepted
            return accepted
        if self._is_over_budget and token != self._reasoning.end[self._seen[-1]]:
            return False
        if not self._reasoning.allows(token):
            return False
        self._seen.append(self._reasoning.advance(self._seen[-1], token))
        return True

    def fill_mask(
        self, mask: npt.NDArray[np.int32], row: int, tokens_left: int | None = None
    ) -> None:
        """Write one row of the mask; with `tokens_left`, thinking leaves room for the rest."""
        if not self.is_thinking:
            self._inner.fill_mask(mask, row, tokens_left)
            return
        free = self._reasoning.free
        mask[row] = 0
        if self._is_over_budget or self._must_end(tokens_left):
            token = self._reasoning.end[self._seen[-1]]
            mask[row, token >> 5] = np.uint32(1 << (token & 31)).view(np.int32)
        else:
            mask[row, : len(free)] = free

    def rollback(self, count: int) -> None:
        """Take the last tokens back, also those of the thinking.

        Raises:
            ValueError: if fewer were accepted.
        """
        thought = len(self._seen) - 1
        if not 0 <= count <= self._taken + thought:
            raise ValueError(
                f"{count} tokens cannot be taken back: {self._taken + thought} were accepted"
            )
        constrained = min(count, self._taken)
        if constrained:
            self._inner.rollback(constrained)
            self._taken -= constrained
        if count > constrained:
            del self._seen[constrained - count :]

    def fork(self) -> ReasoningMatcher:
        """An independent matcher in the same state."""
        other = ReasoningMatcher(self._reasoning, self._inner.fork(), self._budget, self._seen)
        other._taken = self._taken
        return other

    @property
    def is_complete(self) -> bool:
        """Whether the text may end here; never while thinking."""
        return not self.is_thinking and self._inner.is_complete

    @property
    def is_terminated(self) -> bool:
        """Whether nothing may follow."""
        return not self.is_thinking and self._inner.is_terminated

    def forced(self) -> bytes:
        """The text that must come next; thinking is left to the model, token by token."""
        return b"" if self.is_thinking else self._inner.forced()

    def distance_to_end(self) -> int | None:
        """Tokens that suffice for the rest: of the end of the thinking, and of the constraint."""
        distance = self._inner.distance_to_end()
        if distance is None or not self.is_thinking:
            return distance
        return len(self._reasoning.end) - self._seen[-1] + distance

    @property
    def _is_over_budget(self) -> bool:
        return self._budget is not None and len(self._seen) > self._budget

    def _must_end(self, tokens_left: int | None) -> bool:
        """Whether one more thought could leave too few tokens for the rest."""
        distance = None if tokens_left is None else self._inner.distance_to_end()
        if tokens_left is None or distance is None:
            return False
        return tokens_left - 1 < len(self._reasoning.end) + distance


def _borders(words: Sequence[int]) -> list[int]:
    """By prefix of a sequence: the length of its longest proper prefix that is also its suffix."""
    borders = [0] * len(words)
    length = 0
    for index in range(1, len(words)):
        while length and words[length] != words[index]:
            length = borders[length - 1]
        length += words[length] == words[index]
        borders[index] = length
    return borders
