"""Work that is handed in, to a thread or done at once, and what comes of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

_T = TypeVar("_T")
_T_co = TypeVar("_T_co", covariant=True)


class Pending(Protocol[_T_co]):
    """Work that was submitted."""

    def result(self) -> _T_co:
        """Wait for what comes of it, or raise what it raised."""
        ...


class Worker(Protocol):
    """Does what is submitted, in that order."""

    def submit(self, work: Callable[..., _T], /, *args: Any) -> Pending[_T]:
        """Hand in what is called with these arguments."""
        ...

    def shutdown(self, wait: bool) -> None:
        """Take no more, and wait for what was handed in if so asked."""
        ...


class Inline:
    """Does what is submitted at once, in the caller's thread."""

    def submit(self, work: Callable[..., _T], /, *args: Any) -> Done[_T]:
        """See `Worker.submit`."""
        try:
            return Done(work(*args), None)
        except Exception as error:
            return Done(None, error)

    def shutdown(self, wait: bool) -> None:
        """Nothing to end."""


class Done(Generic[_T]):
    """What came of work that is done; a `Future` would make a lock and a condition for it."""

    __slots__ = ("_error", "_value")

    def __init__(self, value: _T | None, error: Exception | None) -> None:
        self._value: Any = value
        self._error = error

    def result(self) -> _T:
        """See `Pending.result`."""
        if self._error is not None:
            raise self._error
        value: _T = self._value
        return value
