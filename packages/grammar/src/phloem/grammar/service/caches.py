"""What the service remembers in memory: compiled constraints, and for a while, errors.

Neither is synchronized; the service is their one user.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from phloem.grammar.errors import GrammarError


@dataclass(frozen=True, slots=True)
class CompiledConstraint:
    """A constraint compiled for one vocabulary, as bytes that another process can load."""

    key: str
    """The constraint's, with its owner where it has one."""
    backend: str
    """The name of the backend that compiled it, and reads `data`."""
    data: bytes
    """What `Grammar.serialize` gave."""


class CompiledCache:
    """Compiled constraints up to a number of bytes; what was used longest ago goes first."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._bytes = 0
        self._items: OrderedDict[str, CompiledConstraint] = OrderedDict()

    def get(self, key: str) -> CompiledConstraint | None:
        """The one with this key, which counts as a use."""
        found = self._items.get(key)
        if found is not None:
            self._items.move_to_end(key)
        return found

    def put(self, compiled: CompiledConstraint) -> None:
        """Keep one, unless it is larger than the whole cache."""
        old = self._items.pop(compiled.key, None)
        if old is not None:
            self._bytes -= len(old.data)
        if len(compiled.data) > self._limit:
            return
        self._items[compiled.key] = compiled
        self._bytes += len(compiled.data)
        while self._bytes > self._limit:
            _, oldest = self._items.popitem(last=False)
            self._bytes -= len(oldest.data)


class RecentErrors:
    """Errors of constraints, each for some seconds."""

    def __init__(self, clock: Callable[[], float], limit: int = 1024) -> None:
        """At most `limit` are kept, the latest."""
        self._clock = clock
        self._limit = limit
        self._items: OrderedDict[str, tuple[float, GrammarError]] = OrderedDict()

    def get(self, key: str) -> GrammarError | None:
        """A copy of the error, because raising one adds to it."""
        until, error = self._items.get(key, (0.0, None))
        if error is None:
            return None
        if until <= self._clock():
            del self._items[key]
            return None
        return copy.copy(error)

    def put(self, key: str, error: GrammarError, seconds: float) -> None:
        """Remember an error from now on."""
        self._items.pop(key, None)
        self._items[key] = (self._clock() + seconds, copy.copy(error))
        if len(self._items) > self._limit:
            self._items.popitem(last=False)
