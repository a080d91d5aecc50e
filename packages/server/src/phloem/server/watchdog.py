"""The watchdog of a loop: should a turn hang, the stacks of its process are written out.

It works in a thread of C, so that a turn that holds Python's lock cannot keep it from barking.
What a hang means to clients is `phloem.server.heartbeat`'s.
"""

from __future__ import annotations

import faulthandler
import math
import time
from collections.abc import Callable

ACTIONS = ("log", "exit")
_AHEAD = 1.0
"""Seconds: a watch begins at most this often, since beginning one takes some 70 us."""


class Watchdog:
    """Writes the stacks of all threads to standard error when a turn takes too long, once for each
    such turn.

    Args:
        seconds: what a turn may take; it barks up to a quarter later, a second at most. 0: never.
        exits: whether the process ends then, with exit status 1.
        clock: in seconds.
    """

    def __init__(
        self, seconds: float, exits: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._every = min(_AHEAD, seconds / 4)
        self._seconds = seconds + self._every
        self._exits = exits
        self._clock = clock
        self._watching = False
        self._due = 0.0 if seconds else math.inf
        """When the watch must begin anew: one that began before would bark too early."""

    def watch(self) -> None:
        """A turn begins."""
        now = self._clock()
        if now >= self._due:
            self._due = now + self._every
            self._watching = True
            faulthandler.dump_traceback_later(self._seconds, exit=self._exits)

    @property
    def patience(self) -> float | None:
        """Seconds that a loop with nothing to do may sleep before it says so; None: any time. So
        the watch goes on over short pauses, since ending it takes its time too.
        """
        return self._every if self._watching else None

    def rest(self) -> None:
        """There is nothing to do: from here on any time may pass."""
        if self._watching:
            self._watching = False
            self._due = 0.0
            faulthandler.cancel_dump_traceback_later()
