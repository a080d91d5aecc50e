"""What a constraint asks of one request: which tokens it may get, and how those that it got are
taken.

Owns the request's matcher, the tokens that are fixed ahead of the output, and what goes wrong with
either. It survives a retraction, as the output does. Masks of a whole batch are `masks`' concern.

::

    the matcher has accepted all of this
    [ output . . . . . . . ][ ahead . . ]
                            fixed by forced text; the request gets them next, one each step, or all
                            at once where it may jump
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from phloem.scheduler.forced_text import ForcedText
from phloem.scheduler.ports import TokenMatcher


class ConstraintBroken(Exception):
    """A constraint that cannot be kept any more: its request ends. The message says why."""


@dataclass(slots=True, eq=False)
class Guide:
    """Steers one request by a matcher. The scheduler is the only user."""

    matcher: TokenMatcher
    steer: bool = False
    """Whether masks keep the text completable within the tokens that are left."""
    forced_text: ForcedText | None = None
    """Fixes the tokens of forced text; None: they are the model's choice."""
    jumps: bool = False
    """Whether fixed tokens are appended without a forward pass each."""
    may_replace: bool = True
    """Whether the sampled token may be cut anew with forced text after it."""
    ahead: deque[int] = field(default_factory=deque)
    """Tokens that come next, whatever the model says."""
    void: bool = False
    """Whether the step in flight computes with a token that was replaced."""
    jumped: int = 0
    """Tokens that were appended without a forward pass of their own."""
    error: str | None = None
    """Why the request has to end."""
    _begun: bool = False

    def fill(self, bits: npt.NDArray[np.int32], row: int, tokens_left: int) -> None:
        """Write which tokens may come next into a row of a mask.

        Raises:
            ConstraintBroken: the matcher failed.
        """
        try:
            if not self._begun:
                self._begin(tokens_left)
            if self.ahead:
                bits[row] = 0
                bits.view(np.uint32)[row, self.ahead[0] // 32] = 1 << self.ahead[0] % 32
            else:
                self.matcher.fill_mask(bits, row, tokens_left if self.steer else None)
        except Exception as error:  # whatever a matcher raises, only its own request may suffer
            raise _broken(error) from error

    def take(self, token: int, stop_ids: Iterable[int], tokens_left: int) -> int:
        """Take a sampled token: the token that the output gets for it. What is fixed after that
        stands in `ahead`.

        Args:
            token: the sampled one.
            stop_ids: tokens that end the output: nothing of them is cut anew.
            tokens_left: that the output may get, this one counted.

        Raises:
            ConstraintBroken: the token is not allowed, or the matcher failed.
        """
        if self.ahead:
            if token != self.ahead[0]:
                raise ConstraintBroken(
                    f"the model step gave token {token}, but only {self.ahead[0]} was allowed"
                )
            return self.ahead.popleft()
        try:
            accepted = self.matcher.accept(token)
            if accepted and self.forced_text is not None and token not in stop_ids:
                left = tokens_left if self.steer else None
                token, *fixed = self.forced_text.settle(
                    self.matcher, token, may_replace=self.may_replace, tokens_left=left
                )
                self.ahead.extend(fixed)
        except Exception as error:  # as above
            raise _broken(error) from error
        if not accepted:
            raise ConstraintBroken(f"the constraint does not allow token {token}, which came")
        return token

    def follow(self, token: int, stop_ids: Iterable[int]) -> bool:
        """Take a sampled token that is the output's as it is and of which nothing else comes, as is
        so of most. False otherwise, and `take` tells more: nothing was taken then.
        """
        if self.void or self.error is not None or token in stop_ids:
            return False
        matcher = self.matcher
        if self.ahead:
            # The last of them may end the output, and who may jump gets all that are left.
            if self.jumps or len(self.ahead) == 1 or token != self.ahead[0]:
                return False
            self.ahead.popleft()
            return True
        try:
            if not matcher.accept(token):
                return False
            if self._is_over_or_forced():
                matcher.rollback(1)
                return False
        except Exception as error:  # as above
            self.error = str(_broken(error))
            return False
        return True

    def _is_over_or_forced(self) -> bool:
        """Whether nothing may follow, or it is known what does; also where the matcher fails:
        `take` and `ended` meet with that again, and have the token.
        """
        try:
            matcher = self.matcher
            return matcher.is_terminated or (
                self.forced_text is not None and bool(matcher.forced())
            )
        except Exception:
            return True

    @property
    def ended(self) -> bool:
        """Whether nothing may follow what the output has got.

        Raises:
            ConstraintBroken: the matcher failed.
        """
        try:
            return not self.ahead and self.matcher.is_terminated
        except Exception as error:  # as above
            raise _broken(error) from error

    def _begin(self, tokens_left: int) -> None:
        self._begun = True
        if self.forced_text is not None:
            left = tokens_left if self.steer else None
            self.ahead.extend(self.forced_text.begin(self.matcher, left))


def _broken(error: Exception) -> ConstraintBroken:
    return ConstraintBroken(f"following the constraint failed: {error}")
