"""The errors of the prefix cache: misuse that a caller can meet, and one for a bug of our own."""

from __future__ import annotations


class StaleMatch(RuntimeError):
    """A handle names tokens that were evicted, dropped or reset since it was made: match again."""


class LockReleased(RuntimeError):
    """A lock was given back twice; every `lock` is paired with exactly one `unlock`."""


class CacheInUse(RuntimeError):
    """`reset` was asked for while locks are held; unlock first."""


class IntegrityError(RuntimeError):
    """`check_integrity` found the cache's own bookkeeping wrong; the message has the numbers."""
