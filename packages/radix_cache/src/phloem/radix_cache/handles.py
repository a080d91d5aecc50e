"""What the tree hands out: matches, insertions and locks, and the numbers it reports.

A handle names the first `length` tokens of a cached path by the node where they end. It pins
nothing by itself; a lock does.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any

from .node import Node

if TYPE_CHECKING:
    from .tree import RadixCache


@dataclass(frozen=True, slots=True, eq=False)
class Handle:
    """`length` tokens (whole pages) that end at `node`. Survives splits, not eviction."""

    cache: RadixCache = field(repr=False)
    node: Node
    length: int

    def values(self) -> Any:
        """The values of these tokens, joined into one fresh value that covers `length` tokens.

        Of zero tokens it is the adapter's empty value: of the type of the first value inserted, or
        of the adapter named at construction; `()` while neither is known. Raises `StaleMatch` if
        the tokens have left the cache.
        """
        return self.cache.values_of(self)


@dataclass(frozen=True, slots=True, eq=False)
class Match(Handle):
    """What `match` found: the longest cached prefix in whole pages."""


@dataclass(frozen=True, slots=True, eq=False)
class Insertion(Handle):
    """What `insert` did; `length` tokens of the key are cached now.

    `declined` holds the ranges of positions whose given values the tree did not adopt, because it
    had values for these tokens: they still belong to the caller. So do values past `length` (a
    partial page).
    """

    declined: tuple[range, ...]


class Lock:
    """A receipt: its tokens stay cached until it is given to `unlock`. Also a context manager."""

    __slots__ = ("handle", "released")

    handle: Handle
    released: bool

    def __init__(self, handle: Handle) -> None:
        self.handle = handle
        self.released = False

    @property
    def node(self) -> Node:
        """The node where the locked tokens end."""
        return self.handle.node

    @property
    def length(self) -> int:
        """How many tokens are locked."""
        return self.handle.length

    def values(self) -> Any:
        """The values of the locked tokens, joined; see `Handle.values`."""
        return self.handle.values()

    def __enter__(self) -> Lock:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.handle.cache.unlock(self)


@dataclass(frozen=True, slots=True)
class Sizes:
    """Tokens in the cache: `total` = `evictable` + `protected` (under a lock)."""

    evictable: int
    protected: int
    total: int


@dataclass(frozen=True, slots=True)
class Stats:
    """Lookups, and tokens, counted since the cache was made; nodes, leaves, namespaces of now."""

    lookups: int
    lookup_tokens: int
    hit_tokens: int
    inserted_tokens: int
    declined_tokens: int
    evicted_tokens: int
    nodes: int
    evictable_leaves: int
    namespaces: int

    @property
    def hit_rate(self) -> float:
        """Share of the tokens looked up that were cached; 0 before the first lookup."""
        return self.hit_tokens / self.lookup_tokens if self.lookup_tokens else 0.0
