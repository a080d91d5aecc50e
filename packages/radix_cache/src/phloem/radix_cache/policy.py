"""Eviction policies: which leaf goes first. A policy is one small class that ranks a node.

Owns the order only; the tree decides what is evictable and keeps the index sorted by rank.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from .node import Node

Rank = float | tuple[float, ...]
"""Sorts leaves; every rank that one policy gives has the same shape."""

QUADRATIC_AT: Final = 8192
"""Tokens of context at which attention is taken to cost as much as the rest of a layer."""


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


class Mru:
    """Most recently used first: for scans longer than the cache, of which LRU keeps nothing."""

    name: Final = "mru"

    def rank(self, node: Node) -> Rank:
        """`-last_access`."""
        return -node.last_access


class Lfu:
    """Least often matched first, and of these the least recently used."""

    name: Final = "lfu"

    def rank(self, node: Node) -> Rank:
        """`(hits, last_access)`."""
        return (node.hits, node.last_access)


class Fifo:
    """First cached, first out, however often it is used."""

    name: Final = "fifo"

    def rank(self, node: Node) -> Rank:
        """`created`."""
        return node.created


class Filo:
    """Last cached, first out: keeps the oldest prefixes."""

    name: Final = "filo"

    def rank(self, node: Node) -> Rank:
        """`-created`."""
        return -node.created


class Priority:
    """Lowest `insert(priority=...)` first, and of these the least recently used."""

    name: Final = "priority"

    def rank(self, node: Node) -> Rank:
        """`(priority, last_access)`."""
        return (node.priority, node.last_access)


class SegmentedLru:
    """LRU in two segments: what was matched often enough is protected by all that was not.

    Keeps a burst of prompts that nobody repeats from washing out those that are in use.

    Args:
        protected_hits: matches that move a node to the protected segment.
    """

    name: Final = "slru"

    def __init__(self, protected_hits: int = 2) -> None:
        if protected_hits < 1:
            raise ValueError(
                f"protected_hits {protected_hits} would protect everything: give 1 or more"
            )
        self._protected_hits = protected_hits

    def rank(self, node: Node) -> Rank:
        """`(hits >= protected_hits, last_access)`."""
        return (node.hits >= self._protected_hits, node.last_access)


def prefill_cost(start: int, end: int) -> float:
    """Cost of computing the tokens [start, end) again, in tokens at the start of a prompt.

    Attention makes a token dearer in proportion to its position: the mean over the range of
    `1 + position / QUADRATIC_AT`, times its length.
    """
    return (end - start) * (1 + (start + end) / 2 / QUADRATIC_AT)


class CostAware:
    """GreedyDual-Size with frequency: cheapest to lose first, in hits times cost for its size.

    A node's `floor` is the rank that eviction had reached when the node was last used; adding it
    lets what was once popular grow old (Cherkasova, "Improving WWW proxies performance with
    greedy-dual-size-frequency caching policy", HP Labs 1998).

    Args:
        cost: what it costs to compute the tokens [start, end) of a prompt again, in any unit.
    """

    name: Final = "cost"

    def __init__(self, cost: Callable[[int, int], float] = prefill_cost) -> None:
        self._cost = cost

    def rank(self, node: Node) -> Rank:
        """`floor + hits * cost(start, end) / length`."""
        floor: float = node.floor
        return floor + node.hits * self._cost(node.start, node.end) / node.length


_POLICIES: Final[dict[str, Callable[[], EvictionPolicy]]] = {
    "lru": Lru,
    "lfu": Lfu,
    "fifo": Fifo,
    "filo": Filo,
    "mru": Mru,
    "priority": Priority,
    "slru": SegmentedLru,
    "cost": CostAware,
}

POLICY_NAMES: Final = tuple(_POLICIES)
"""The names that `RadixCache(policy=...)` knows."""


def resolve(policy: str | EvictionPolicy) -> EvictionPolicy:
    """The policy of that name, or the given object itself; `ValueError` names the known ones."""
    if not isinstance(policy, str):
        return policy
    if policy not in _POLICIES:
        raise ValueError(
            f"policy {policy!r} is unknown: use {', '.join(POLICY_NAMES)}, or pass an "
            "EvictionPolicy"
        )
    return _POLICIES[policy]()
