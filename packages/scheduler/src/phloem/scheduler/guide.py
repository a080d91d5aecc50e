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
from typing import Protocol

import numpy as np
import numpy.typing as npt

from phloem.scheduler.forced_text import ForcedText
from phloem.scheduler.ports import TokenMatcher
from phloem.scheduler.sampling import SamplingParams


class Steered(Protocol):
    """What is looked at of a request."""

    params: SamplingParams
    max_new_tokens: int

    @property
    def num_output(self) -> int:
        """Output tokens that are known."""
        ...


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
                word, bit = divmod(self.ahead[0], 32)
                bits[row] = 0
                bits[row, word] = 1 << bit if bit < 31 else _HIGHEST
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

    def follow(self, token: int, request: Steered, alone: bool) -> int | None:
        """Take a sampled token for which the output gets one and goes on, as is so of most: that
        one. None otherwise, and `take` tells more: nothing was taken then.

        Args:
            token: the sampled one.
            request: whose output it is.
            alone: whether no step is in flight, which would compute with the sampled one.
        """
        if self.void or self.error is not None or token in request.params.stop_token_ids:
            return None
        try:
            if self.ahead:
                return self._next_ahead(token)
            if not self.matcher.accept(token):
                return None
            if self._is_over_or_forced():
                return self._settle(token, request, alone)
        except Exception as error:  # as above
            self.error = str(_broken(error))
            return None
        return token

    def _next_ahead(self, token: int) -> int | None:
        # Who may jump gets all that are left.
        if self.jumps or token != self.ahead[0]:
            return None
        if len(self.ahead) == 1 and self.matcher.is_terminated:
            return None
        return self.ahead.popleft()

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

    def _settle(self, token: int, request: Steered, alone: bool) -> int | None:
        """Fix what is forced after a token that was accepted just now; `follow` tells the rest."""
        matcher = self.matcher
        if self.forced_text is None or self.jumps or matcher.is_terminated:
            matcher.rollback(1)
            return None
        left = request.max_new_tokens - request.num_output if self.steer else None
        first, *fixed = self.forced_text.settle(
            matcher, token, may_replace=self.may_replace, tokens_left=left
        )
        if (first != token and not alone) or (not fixed and matcher.is_terminated):
            matcher.rollback(1 + len(fixed))
            return None
        self.ahead.extend(fixed)
        return first

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


_HIGHEST = -(1 << 31)


def _broken(error: Exception) -> ConstraintBroken:
    return ConstraintBroken(f"following the constraint failed: {error}")
