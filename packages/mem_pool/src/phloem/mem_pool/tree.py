"""What `CacheManager` asks of a prefix tree, and the tree that caches nothing.

`phloem.radix_cache.RadixCache` fits these Protocols without either package knowing the other. Keys
and locks are opaque here: the tree makes them and takes them back.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from phloem.mem_pool.slots import Slots

Namespace: TypeAlias = tuple[object, ...]
"""What must be equal for two sequences to share slots (adapter, salt, weight version)."""
TokenIds: TypeAlias = Sequence[int] | npt.NDArray[np.int32]
"""Token ids by position."""
TreeKey: TypeAlias = Any
"""A tree's own form of tokens in a namespace."""
TreeLock: TypeAlias = Any
"""A tree's receipt for a lock."""


class TreeHandle(Protocol):
    """A prefix that the tree holds. Stays good while it is locked, also across splits."""

    @property
    def length(self) -> int:
        """Tokens of the prefix."""
        ...

    def values(self) -> Slots:
        """int32 [length], the tree's slots of the prefix."""
        ...


class InsertResult(TreeHandle, Protocol):
    """What the tree holds of an inserted key, and what it had before."""

    @property
    def declined(self) -> Sequence[range]:
        """Ranges of the inserted values that the tree did not take, because it has others there."""
        ...


class TreeSizes(Protocol):
    """Tokens on the device: `total = evictable + protected`."""

    @property
    def evictable(self) -> int:
        """Tokens that no lock covers."""
        ...

    @property
    def protected(self) -> int:
        """Tokens that a lock covers."""
        ...

    @property
    def total(self) -> int:
        """Tokens in all."""
        ...


class TreeExplanation(Protocol):
    """Why a match ends where it does."""

    @property
    def reason(self) -> str:
        """One of "hit", "evicted", "differs" and "never seen", or one of the tree's own."""
        ...

    @property
    def neighbour(self) -> tuple[int, int, int] | None:
        """Where the key parts from what is stored: the position, the key's token, the stored one;
        None unless it differs.
        """
        ...


class PrefixTree(Protocol):
    """A map from token prefixes to the slots that hold their KV.

    The tree decides, the owner frees: the tree never touches a pool, it returns what it lets go.
    """

    @property
    def page_size(self) -> int:
        """Tokens that are shared or evicted together."""
        ...

    @property
    def sizes(self) -> TreeSizes:
        """What the tree holds now."""
        ...

    def key(self, tokens: Any, namespace: Namespace) -> TreeKey:
        """Token ids, as the manager was given them, and a namespace, in the tree's own form."""
        ...

    def peek(self, key: TreeKey) -> int:
        """Tokens that `match` would find; changes nothing."""
        ...

    def match(self, key: TreeKey) -> TreeHandle:
        """The longest prefix of the key that the tree holds, in whole pages."""
        ...

    def explain(self, key: TreeKey) -> TreeExplanation:
        """Why `match` finds no more of the key than it does; changes nothing."""
        ...

    def lock(self, handle: Any) -> TreeLock:
        """Keep a matched or inserted prefix from eviction until `unlock`."""
        ...

    def unlock(self, lock: TreeLock) -> None:
        """End a lock."""
        ...

    def insert(
        self, key: TreeKey, values: Slots, priority: int = 0, retain_for: float | None = None
    ) -> InsertResult:
        """Take the slots of the ranges of the key that the tree does not hold; keeps no view.

        The higher the priority, the longer a tree may keep the key; for `retain_for` seconds it
        lets go of all else before.
        """
        ...

    def evict(self, n: int) -> Sequence[Slots]:
        """Let go of `n` or a little more unlocked tokens (all, if fewer) and return their slots."""
        ...

    def drop(self, namespace: Namespace) -> Sequence[Slots]:
        """Let go of everything in a namespace that is not locked; return the slots."""
        ...

    def evict_idle(self, before: float) -> Sequence[Slots]:
        """Let go of everything unlocked that was last used before a time of the tree's clock."""
        ...

    def reset(self) -> Sequence[Slots]:
        """Let go of everything and return the slots. Not called while a lock is held."""
        ...

    def iter_values(self) -> Iterable[Slots]:
        """The slots of every node; for checks."""
        ...

    def holder(self, slot: int) -> str:
        """Which node holds a slot, in words; for checks."""
        ...


@dataclass(frozen=True, slots=True)
class _NoSizes:
    evictable: int = 0
    protected: int = 0
    total: int = 0


@dataclass(frozen=True, slots=True)
class _Nothing:
    """The empty prefix: what a tree without nodes matches and holds."""

    length: int = 0
    declined: tuple[range, ...] = ()
    reason: str = "never seen"
    neighbour: None = None

    def values(self) -> Slots:
        return np.empty(0, np.int32)


class NoPrefixTree:
    """A prefix tree that caches nothing, for engines that run without prefix caching."""

    def __init__(self, page_size: int = 1) -> None:
        self._page_size = page_size

    @property
    def page_size(self) -> int:
        """The page size it was made with."""
        return self._page_size

    @property
    def sizes(self) -> TreeSizes:
        """Zeros."""
        return _NoSizes()

    def key(self, tokens: TokenIds, namespace: Namespace) -> TreeKey:
        """Nothing is stored, so nothing tells keys apart."""
        return None

    def peek(self, key: TreeKey) -> int:
        """0."""
        return 0

    def match(self, key: TreeKey) -> TreeHandle:
        """The empty prefix."""
        return _Nothing()

    def explain(self, key: TreeKey) -> TreeExplanation:
        """Nothing was ever stored."""
        return _Nothing()

    def lock(self, handle: Any) -> TreeLock:
        """Nothing to keep."""
        return None

    def unlock(self, lock: TreeLock) -> None:
        """Nothing was kept."""

    def insert(
        self, key: TreeKey, values: Slots, priority: int = 0, retain_for: float | None = None
    ) -> InsertResult:
        """Takes nothing: the caller keeps all of its slots."""
        return _Nothing()

    def evict(self, n: int) -> Sequence[Slots]:
        """Nothing to let go."""
        return ()

    def drop(self, namespace: Namespace) -> Sequence[Slots]:
        """Nothing to let go."""
        return ()

    def evict_idle(self, before: float) -> Sequence[Slots]:
        """Nothing to let go."""
        return ()

    def reset(self) -> Sequence[Slots]:
        """Nothing to let go."""
        return ()

    def iter_values(self) -> Iterable[Slots]:
        """No nodes."""
        return ()

    def holder(self, slot: int) -> str:
        """No node."""
        return "no node"
