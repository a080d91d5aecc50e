"""The errors of the prefix cache: misuse that a caller can meet, and one for a bug of our own."""

from __future__ import annotations


class StaleMatch(RuntimeError):
    """A handle names tokens that were evicted, dropped or reset since it was made: match again."""


class LockReleased(RuntimeError):
    """A receipt was given back twice. Each is given back once: a lock to `unlock`; a copy in flight
    to `backed_up`, `loaded` or `cancel`."""


class CacheInUse(RuntimeError):
    """`reset` was asked for while locks are held or copies are in flight: give them back first."""


class IntegrityError(RuntimeError):
    """`check_integrity` found the cache's own bookkeeping wrong; the message has the numbers."""
