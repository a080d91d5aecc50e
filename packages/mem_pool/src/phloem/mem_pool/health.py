"""When to stop asking something that keeps failing; nothing else."""

from __future__ import annotations

import logging

log = logging.getLogger(__name__)

FAILURES_ALLOWED = 3


class Health:
    """Whether a tier is worth asking: not any more after several failures in a row.

    Attributes:
        failures: how often it failed.
        off: it is not to be asked again.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._in_a_row = 0
        self.failures = 0
        self.off = False

    def succeeded(self) -> None:
        """It works."""
        self._in_a_row = 0

    def failed(self, why: object, *, for_good: bool = False) -> None:
        """It did not; `for_good`: it is of no use to try again."""
        self.failures += 1
        self._in_a_row += 1
        log.warning("%s failed, which is a cache miss: %s", self._what, why)
        if for_good or self._in_a_row >= FAILURES_ALLOWED:
            self.off = True
            log.error("%s is not used any more after %d failures", self._what, self.failures)
