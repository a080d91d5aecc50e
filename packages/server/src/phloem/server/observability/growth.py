"""How much something has grown of late: for rates and shares of the last seconds."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

_MARKS = 10
"""Into so many parts the time is cut: what is told is of the last `seconds`, and a part more."""


class Growth:
    """Remembers what totals were in the last `seconds`; one thread uses it.

    `due` is when `mark` should be called next, which costs nothing to compare with a time that is
    known anyway.
    """

    __slots__ = ("_marks", "_part", "_read", "_seconds", "due")

    def __init__(self, seconds: float, read: Callable[[], tuple[float, ...]], now: float) -> None:
        """`read` gives the totals, which only grow."""
        self._seconds = seconds
        self._part = seconds / _MARKS
        self._read = read
        self._marks = deque([(now, read())])
        self.due = now + self._part

    def mark(self, now: float) -> None:
        """Remember the totals of now."""
        self._marks.append((now, self._read()))
        self.due = now + self._part
        self._forget(now)

    def growth(self, now: float) -> tuple[float, tuple[float, ...]]:
        """Seconds looked back on, and how much each total has grown in them."""
        self._forget(now)
        since, before = self._marks[0]
        totals = zip(self._read(), before, strict=True)
        return max(now - since, self._part), tuple(total - then for total, then in totals)

    def _forget(self, now: float) -> None:
        """Keep one mark that is as old as asked for, so that the whole time is covered."""
        while len(self._marks) > 1 and self._marks[1][0] <= now - self._seconds:
            self._marks.popleft()
