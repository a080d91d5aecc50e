"""Eviction policies: which leaf goes first. A policy is one small class that ranks a node.

Owns the order only; the tree decides what is evictable and keeps the index sorted by rank.
"""

from __future__ import annotations

from typing import Final, Protocol

from .node import Node

Rank = float | tuple[float, ...]
"""Sorts leaves; every rank that one policy gives has the same shape."""


class EvictionPolicy(Protocol):
    """Ranks nodes; equal ranks are broken by the node's age, older first."""

    @property
    def name(self) -> str:
        """How `RadixCache(policy=...)` and error messages call it."""
        ...

    def rank(self, node: Node) -> Rank:
        """The smallest rank is evicted first.

        Read only the documented fields of `node`. Called again whenever one of them may have
        changed.
        """
        ...


class Lru:
    """Least recently used first: by the time a match or an insert last covered the node."""

    name: Final = "lru"

    def rank(self, node: Node) -> Rank:
        """`last_access`."""
        return node.last_access


_POLICIES: Final = {policy.name: policy for policy in (Lru,)}


def resolve(policy: str | EvictionPolicy) -> EvictionPolicy:
    """The policy of that name, or the given object itself; `ValueError` names the known ones."""
    if not isinstance(policy, str):
        return policy
    if policy not in _POLICIES:
        known = ", ".join(sorted(_POLICIES))
        raise ValueError(f"policy {policy!r} is unknown: use {known}, or pass an EvictionPolicy")
    return _POLICIES[policy]()
