"""`AutomatonGrammar` and `AutomatonMatcher`: an automaton behind the contracts of `base.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter

import numpy as np
import numpy.typing as npt

from phloem.grammar.automaton import Automaton
from phloem.grammar.base import Matcher
from phloem.grammar.sealed import seal
from phloem.grammar.sweeps import Sweeps
from phloem.grammar.token_engine import Position, TokenEngine, is_complete
from phloem.grammar.vocabulary import Vocabulary


class AutomatonGrammar:
    """A byte automaton over a vocabulary. Its matchers share caches: use them from one thread.

    Args:
        sweeps: where sweeps of the vocabulary are kept, to share them between grammars.
        header: what a serialized grammar says of itself.
        cache_bytes: about what the caches may take before they start over.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        automaton: Automaton,
        *,
        sweeps: Sweeps | None = None,
        header: Mapping[str, str] | None = None,
        cache_bytes: int = 16 << 20,
    ) -> None:
        self.vocabulary = vocabulary
        self.automaton = automaton
        self._header = dict(header or {})
        self._engine = TokenEngine(vocabulary, automaton, sweeps, cache_bytes)

    def matcher(self) -> AutomatonMatcher:
        """A matcher at the beginning of a text."""
        return AutomatonMatcher(self._engine, self._engine.start())

    def accepts(self, text: str | bytes) -> bool:
        """Whether a whole text is legal."""
        cursor = self.automaton.start
        for byte in text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text:
            following = cursor.step(byte)
            if following is None:
                return False
            cursor = following
        return cursor.complete

    def serialize(self) -> bytes:
        """The compiled form, which the backend that made this grammar reads."""
        return seal(self.automaton.serialize(), **self._header)


class AutomatonMatcher:
    """Follows one text through an automaton. See `base.Matcher`."""

    __slots__ = ("_engine", "_history", "_position")

    def __init__(
        self, engine: TokenEngine, position: Position, history: Sequence[Position] = ()
    ) -> None:
        self._engine = engine
        self._position = position
        self._history = list(history)

    def accept(self, token: int) -> bool:
        """Take the next token; False, and nothing changes, if it is not legal."""
        position = self._position
        target = position.next.get(token) or self._engine.advance(position, token)
        if target is None:
            return False
        self._history.append(position)
        self._position = target
        return True

    def fill_mask(
        self, mask: npt.NDArray[np.int32], row: int, tokens_left: int | None = None
    ) -> None:
        """Write the legal tokens into `mask[row]`; none at all after a stop token."""
        engine, position = self._engine, self._position
        if tokens_left is not None:
            steered = engine.near_end(position, tokens_left)
            if steered is not None:
                _write(mask, row, steered)
                return
        number = position.row if position.row >= 0 else engine.row(position)
        _write(mask, row, engine.rows.array[number])

    def rollback(self, count: int) -> None:
        """Take the last `count` tokens back.

        Raises:
            ValueError: if fewer were accepted.
        """
        if not 0 <= count <= len(self._history):
            raise ValueError(f"cannot take {count} tokens back: {len(self._history)} were accepted")
        if count:
            self._position = self._history[-count]
            del self._history[-count:]

    def fork(self) -> AutomatonMatcher:
        """An independent matcher in the same state."""
        return AutomatonMatcher(self._engine, self._position, self._history)

    @property
    def is_complete(self) -> bool:
        """Whether the text may end here."""
        return is_complete(self._position)

    @property
    def is_terminated(self) -> bool:
        """Whether a stop token was taken, or nothing can follow."""
        return self._position.final

    def forced(self) -> bytes:
        """The text that must come next; it may end within a character."""
        return self._engine.forced(self._position)

    def distance_to_end(self) -> int | None:
        """Tokens that suffice to complete the text; None where the automaton cannot tell."""
        return self._engine.distance(self._position)


def fill_masks(
    matchers: Sequence[Matcher],
    mask: npt.NDArray[np.int32],
    rows: Sequence[int],
    tokens_left: Sequence[int | None] | None = None,
) -> None:
    """Fill one row of `mask` per matcher, of any backends; `tokens_left`, if any, per matcher.

    Matchers of one automaton grammar whose rows are adjacent are written by one gather.
    """
    if _none_is_near_its_end(matchers, tokens_left) and _gathered(matchers, mask, rows):
        return
    for index, (matcher, row) in enumerate(zip(matchers, rows, strict=True)):
        matcher.fill_mask(mask, row, None if tokens_left is None else tokens_left[index])


def _none_is_near_its_end(
    matchers: Sequence[Matcher], tokens_left: Sequence[int | None] | None
) -> bool:
    """Whether it is known of every matcher that it has tokens enough after any token."""
    return tokens_left is None or all(
        left is None
        or (
            isinstance(matcher, AutomatonMatcher)
            and matcher._engine.has_enough(matcher._position, left)
        )
        for matcher, left in zip(matchers, tokens_left, strict=True)
    )


def _gathered(
    matchers: Sequence[Matcher], mask: npt.NDArray[np.int32], rows: Sequence[int]
) -> bool:
    """Fill the whole batch at once, if it is one grammar's and its rows are adjacent.

    A loop over the matchers would take longer than all the copying: hence the maps.
    """
    count, begin = len(rows), rows[0] if rows else 0
    try:
        engines = {*map(_ENGINE, matchers)}
        numbers = [*map(_ROW, matchers)]
    except AttributeError:  # there are others among them
        return False
    if len(engines) != 1 or count != len(matchers):
        return False
    engine: TokenEngine = engines.pop()
    if mask.shape[1] != engine.vocabulary.words:
        return False
    if rows != range(begin, begin + count) and [*rows] != [*range(begin, begin + count)]:
        return False
    if min(numbers) < 0:
        generation = engine.rows.generation
        numbers = [engine.row(matcher._position) for matcher in matchers]  # type: ignore[attr-defined]
        if engine.rows.generation != generation:
            return False
    engine.rows.array.take(numbers, axis=0, out=mask[begin : begin + count], mode="clip")
    return True


_ENGINE = attrgetter("_engine")
_ROW = attrgetter("_position.row")


def _write(mask: npt.NDArray[np.int32], row: int, bits: npt.NDArray[np.int32]) -> None:
    """Copy a row; words beyond the vocabulary are zero."""
    target = mask[row]
    if len(target) == len(bits):
        target[:] = bits
    else:
        target[: len(bits)] = bits
        target[len(bits) :] = 0
