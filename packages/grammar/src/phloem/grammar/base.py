"""The contracts of a grammar backend: compiled constraints, and the matchers that follow a text.

The scheduler's port for constraints is satisfied by `Matcher` structurally. This module holds no
behaviour.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from phloem.grammar.constraint import Constraint


class Matcher(Protocol):
    """Follows one text, token by token, and says what may come next. Used by one thread."""

    def accept(self, token: int) -> bool:
        """Take the next token; False, and nothing changes, if the constraint forbids it.

        A stop token is legal where the text is complete, and terminates.
        """
        ...

    def fill_mask(
        self, mask: npt.NDArray[np.int32], row: int, tokens_left: int | None = None
    ) -> None:
        """Write which tokens may come next into one row of `mask`.

        `mask` is int32 [rows, ceil(vocab / 32)], C-contiguous; bit t % 32 of word t // 32 belongs
        to token t, and ids beyond the vocabulary get 0. Stop tokens are set where the text is
        complete. With `tokens_left`, tokens after which the text could not be completed within
        `tokens_left - 1` further ones are left out; where that leaves none, or the backend cannot
        tell distances, what remains is the tokens on a shortest way, or all legal ones.
        """
        ...

    def rollback(self, count: int) -> None:
        """Take the last `count` accepted tokens back.

        Raises:
            ValueError: if fewer were accepted.
        """
        ...

    def fork(self) -> Matcher:
        """An independent matcher in the same state; cheap."""
        ...

    @property
    def is_complete(self) -> bool:
        """Whether the text so far is one that the constraint allows to end here."""
        ...

    @property
    def is_terminated(self) -> bool:
        """Whether nothing may follow: a stop token was taken, or no text can go on from here."""
        ...

    def forced(self) -> bytes:
        """The text that must come next whatever is chosen; empty where there is a choice.

        Where the text may also end here there is a choice.
        """
        ...

    def distance_to_end(self) -> int | None:
        """Tokens that suffice to complete the text from here (an upper bound of the fewest; stop
        token not counted); None where the backend cannot tell."""
        ...


class Grammar(Protocol):
    """A compiled constraint, over one vocabulary. Immutable to its users; shared by matchers."""

    def matcher(self) -> Matcher:
        """A matcher at the beginning of a text."""
        ...

    def accepts(self, text: str | bytes) -> bool:
        """Whether a whole text is legal."""
        ...

    def serialize(self) -> bytes:
        """The compiled form; `GrammarBackend.deserialize` of an equal vocabulary reads it."""
        ...


class GrammarBackend(Protocol):
    """Compiles constraints for one vocabulary."""

    @property
    def name(self) -> str:
        """`fsm`, `xgrammar`, `llguidance` or `auto`."""
        ...

    def check(self, constraint: Constraint) -> None:
        """Raise what `compile` would for what this backend cannot enforce; cheaper than compiling.

        Raises:
            UnsupportedConstraint: naming the place, the keyword and the cure.
            GrammarError: if the constraint is malformed or can be satisfied by no text.
        """
        ...

    def compile(self, constraint: Constraint) -> Grammar:
        """Compile a constraint.

        Raises:
            UnsupportedConstraint, GrammarError: as `check`.
            ConstraintTooComplex: if a limit was reached.
        """
        ...

    def deserialize(self, data: bytes) -> Grammar:
        """What `serialize` of a grammar of this backend gave.

        Raises:
            GrammarError: if the bytes are damaged, or of another vocabulary or version.
        """
        ...
