"""When to stop asking something that keeps failing, and what is not a failure but a mistake."""

from __future__ import annotations

import logging

log = logging.getLogger(__name__)

FAILURES_ALLOWED = 3
_MISTAKES = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    NameError,
    TypeError,
    ValueError,
)
"""What no disk, device or network raises, but code that is wrong."""


class Health:
    """Whether a tier is worth asking: not any more after several failures in a row.

    A mistake in the code of a tier is a miss as well, so that it costs no request, but nobody
    should take it for a disk that is full: it is counted apart, and logged with its traceback.

    Attributes:
        failures: how often it failed.
        mistakes: how often its code did what makes no sense; not among the failures.
        off: it is not to be asked again.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._in_a_row = 0
        self._told: set[type[BaseException]] = set()
        self.failures = 0
        self.mistakes = 0
        self.off = False

    def succeeded(self) -> None:
        """It works."""
        self._in_a_row = 0

    def failed(self, why: object, *, for_good: bool = False) -> None:
        """It did not; `for_good`: it is of no use to try again."""
        self._in_a_row += 1
        if isinstance(why, _MISTAKES):
            self.mistakes += 1
            self._tell(why)
        else:
            self.failures += 1
            log.warning("%s failed, which is a cache miss: %s", self._what, why)
        if for_good or self._in_a_row >= FAILURES_ALLOWED:
            self.off = True
            times = self.failures + self.mistakes
            log.error("%s is not used any more after %d failures", self._what, times)

    def _tell(self, mistake: Exception) -> None:
        """The traceback of each kind once: the next is mostly the same."""
        if type(mistake) not in self._told:
            self._told.add(type(mistake))
            log.error(
                "%s has a mistake in its code, which is a cache miss, please report it: %r",
                self._what,
                mistake,
                exc_info=mistake,
            )
