"""The bookkeeping that every wrapped matcher needs: stop tokens, ends, masks of the right width.

Libraries differ in what they do at the end of a text, so stop tokens never reach them: a wrapper
takes them itself. What follows a text inside a library is behind `TextParser`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from phloem.grammar.errors import GrammarError
from phloem.grammar.mask_rows import row_of
from phloem.grammar.vocabulary import Vocabulary


class TextParser(Protocol):
    """A library's parser in the middle of a text; it only gets tokens that have bytes."""

    def accept(self, token: int) -> bool:
        """Take a token; False, and nothing changes, if it is illegal."""
        ...

    def fill(self, words: npt.NDArray[np.int32]) -> None:
        """Write the mask of the tokens that may come next; bits of stop tokens do not matter."""
        ...

    def rollback(self, count: int) -> None:
        """Take `count` tokens back."""
        ...

    def fork(self) -> TextParser:
        """An independent parser in the same state."""
        ...

    @property
    def is_complete(self) -> bool:
        """Whether the text may end here."""
        ...

    def forced(self) -> bytes:
        """Bytes that must come next, in a place where the text may not end."""
        ...


@dataclass(frozen=True)
class TokenSets:
    """Which ids of a vocabulary are what, as masks: int32 [ceil(size / 32)]."""

    size: int
    text: npt.NDArray[np.int32]
    """Tokens with bytes, but for stop tokens."""
    stop: npt.NDArray[np.int32]
    stop_ids: frozenset[int]

    def is_text(self, token: int) -> bool:
        """Whether an id stands for bytes of text."""
        return 0 <= token < self.size and bool((int(self.text[token >> 5]) >> (token & 31)) & 1)


class WrappedMatcher:
    """A `Matcher` over a library's parser."""

    def __init__(self, parser: TextParser, sets: TokenSets) -> None:
        self._parser = parser
        self._sets = sets
        self._taken = 0
        self._stopped = False

    def accept(self, token: int) -> bool:
        """Take the next token; False, and nothing changes, if it may not come."""
        if self._stopped:
            return False
        if token in self._sets.stop_ids:
            self._stopped = self._parser.is_complete
            return self._stopped
        if not self._sets.is_text(token) or not self._parser.accept(token):
            return False
        self._taken += 1
        return True

    def fill_mask(
        self, mask: npt.NDArray[np.int32], row: int, tokens_left: int | None = None
    ) -> None:
        """Write one row of the mask; no distances are known, so `tokens_left` changes nothing."""
        width = len(self._sets.text)
        words = mask[row, :width]
        mask[row, width:] = 0
        if self._stopped:
            words[:] = 0
            return
        self._parser.fill(words)
        words &= self._sets.text
        if self._parser.is_complete:
            words |= self._sets.stop

    def rollback(self, count: int) -> None:
        """Take the last tokens back.

        Raises:
            ValueError: if fewer were accepted.
        """
        if not 0 <= count <= self._taken + self._stopped:
            raise ValueError(
                f"{count} tokens cannot be taken back: {self._taken + self._stopped} were accepted"
            )
        texts = count - self._stopped if count else 0
        self._stopped = self._stopped and not count
        if texts:
            self._parser.rollback(texts)
            self._taken -= texts

    def fork(self) -> WrappedMatcher:
        """An independent matcher in the same state."""
        other = WrappedMatcher(self._parser.fork(), self._sets)
        other._taken = self._taken
        other._stopped = self._stopped
        return other

    @property
    def is_complete(self) -> bool:
        """Whether the text may end here."""
        return self._parser.is_complete

    @property
    def is_terminated(self) -> bool:
        """Whether a stop token was taken, or no other token may come."""
        if self._stopped:
            return True
        return self._parser.is_complete and self.is_dead

    @property
    def is_dead(self) -> bool:
        """Whether no token but a stop token may come; costs a mask."""
        words = np.zeros_like(self._sets.text)
        self._parser.fill(words)
        return not (words & self._sets.text).any()

    def forced(self) -> bytes:
        """The text that must come next."""
        return b"" if self._stopped or self._parser.is_complete else self._parser.forced()

    def distance_to_end(self) -> None:
        """Unknown: these libraries do not tell."""
        return None


def token_sets(vocabulary: Vocabulary, without: Collection[int] = ()) -> TokenSets:
    """The sets of a vocabulary, as if the tokens `without` had no bytes.

    Raises:
        GrammarError: if it has no stop token, without which these libraries end no text.
    """
    if not vocabulary.stop_ids:
        raise GrammarError(
            "the vocabulary has no stop token: give stop_ids, or use the fsm backend"
        )
    texts = {id for id, token in enumerate(vocabulary.tokens) if token is not None}
    return TokenSets(
        size=vocabulary.size,
        text=row_of(sorted(texts.difference(without)), vocabulary.words),
        stop=row_of(sorted(vocabulary.stop_ids), vocabulary.words),
        stop_ids=frozenset(vocabulary.stop_ids),
    )
