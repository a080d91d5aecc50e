"""What a host tier asks of others: a tree with two tiers, copies, a store of blocks.

Contracts only. `phloem.radix_cache.RadixCache(host_tier=True)` fits `TieredTree`,
`phloem.mem_pool.kv_transfer.KVTransfer` fits `Transfer`, `phloem.mem_pool.DiskStore` fits `Store`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Protocol, TypeAlias

from phloem.mem_pool.slots import Slots
from phloem.mem_pool.tree import InsertResult, Namespace, PrefixTree, TreeHandle, TreeSizes

DEVICE: Final = 0
HOST: Final = 1
"""The tiers, as the tree numbers them."""
Bytes: TypeAlias = "bytes | memoryview"
"""Data; a view is one of bytes, not written to any more."""
Ticket: TypeAlias = Any
"""A copy in flight, in a `Transfer`'s own form."""


class TieredKey(Protocol):
    """A tree's key whose tokens can be read."""

    @property
    def namespace(self) -> Namespace:
        """What must be equal for two sequences to share."""
        ...

    def tokens(self) -> Any:
        """The token ids; a buffer or a sequence of ints."""
        ...

    def head(self, n: int) -> TieredKey:
        """The key of the first `n` tokens."""
        ...

    def __len__(self) -> int: ...


class TieredMatch(TreeHandle, Protocol):
    """A prefix on the device, and what only the host has behind it."""

    @property
    def host_length(self) -> int:
        """Tokens after `length` that only the host tier holds."""
        ...


class TreeTransfer(Protocol):
    """Tokens [start, start + length) of a path, pinned in both tiers until it is given back."""

    @property
    def start(self) -> int:
        """Tokens of the path before the first that is copied."""
        ...

    @property
    def length(self) -> int:
        """Tokens to copy."""
        ...

    def values(self) -> Slots:
        """int32 [length], the slots to copy from."""
        ...

    def key(self) -> TieredKey:
        """All tokens of the path up to the last one that is copied."""
        ...


class TieredSizes(TreeSizes, Protocol):
    """Tokens on the device, and on the host."""

    @property
    def host(self) -> TreeSizes:
        """Tokens in the host tier."""
        ...


class TieredTree(PrefixTree, Protocol):
    """A prefix tree that keeps a second copy of slots for the host; where `tier` is asked for, 0 is
    the device and 1 the host.
    """

    @property
    def sizes(self) -> TieredSizes:
        """What it holds now."""
        ...

    def peek(self, key: Any, tier: Any = ...) -> int:
        """Tokens that a match would find on the device; with the host, in both."""
        ...

    def match(self, key: Any) -> TieredMatch:
        """The longest prefix that is cached, in whole pages."""
        ...

    def resident(self, key: Any, tier: Any = ...) -> Slots:
        """The slots of the longest prefix of a key that one tier holds; changes nothing."""
        ...

    def insert(
        self,
        key: Any,
        values: Slots,
        priority: int = 0,
        retain_for: float | None = None,
        *,
        tier: Any = ...,
    ) -> InsertResult:
        """Take slots of a tier for what that tier lacks of the key."""
        ...

    def evict(self, n: int, tier: Any = ...) -> Sequence[Slots]:
        """Let go of `n` or a little more unlocked tokens of a tier."""
        ...

    def iter_values(self, tier: Any = ...) -> Iterable[Slots]:
        """The slots of every node in a tier."""
        ...

    def holder(self, slot: int, tier: Any = ...) -> str:
        """Which node holds a slot of a tier, in words."""
        ...

    def backups(self, limit: int | None) -> Sequence[TreeTransfer]:
        """What to copy to the host now, parents first, about `limit` tokens."""
        ...

    def backed_up(self, backup: Any, host_values: Slots) -> Sequence[range]:
        """A copy is made; returns the ranges of the slots given that the tree did not take."""
        ...

    def load(self, match: Any) -> TreeTransfer:
        """Begin to bring back what a match found in the host tier only."""
        ...

    def loaded(self, load: Any, device_values: Slots) -> InsertResult:
        """The slots of a load hold its KV, or will before anybody reads them."""
        ...

    def cancel(self, transfer: Any) -> None:
        """A copy is given up."""
        ...


class Transfer(Protocol):
    """Copies KV between the slots of the device and those of the host.

    Everything that is asked for happens in the order in which it was asked for, all kinds together.
    Hence a slot may be given to somebody else as soon as the last copy that it takes part in was
    asked for, also before that copy is made.
    """

    @property
    def bytes_per_token(self) -> int:
        """Bytes of one token in `read` and `write`."""
        ...

    def backup(self, device_slots: Slots, host_slots: Slots) -> Ticket:
        """Copy slots of the device to the host; returns at once."""
        ...

    def done(self, ticket: Ticket, wait: float = 0.0) -> bool:
        """Whether a backup is made, having waited for it `wait` seconds at most.

        Raises:
            Exception: the copy failed; nothing writes to its host slots any more.
        """
        ...

    def load(self, host_slots: Slots, device_slots: Slots) -> None:
        """Copy slots of the host to the device, at the latest before a later model step reads them.

        Raises:
            Exception: it cannot be done; nothing writes to the device slots any more.
        """
        ...

    def read(self, host_slots: Slots, then: Callable[[Bytes], None]) -> None:
        """Give the bytes of host slots, token by token, to `then`, in any thread."""
        ...

    def write(self, host_slots: Slots, data: Bytes) -> None:
        """Fill host slots with such bytes."""
        ...

    def close(self) -> None:
        """Finish what was asked for and end."""
        ...


class Store(Protocol):
    """Blocks of KV by name, kept where they survive the process. Nothing that it does may fail a
    request: what cannot be had is a miss.
    """

    def find(self, names: Sequence[bytes]) -> int:
        """How many of `names` are there, counted from the first without a gap."""
        ...

    def get(self, name: bytes) -> Bytes | None:
        """A block as it was put, verified; None if it is not there, or not as it was put."""
        ...

    def counts(self) -> dict[str, int]:
        """What it did since it was made, in blocks."""
        ...

    def put(self, name: bytes, data: Bytes, *, replace: bool = False) -> None:
        """Take a block, now or later or, when there is no room or too much to do, not at all.

        What has the name already is the same, unless `replace` says otherwise. From any thread.
        """
        ...

    def close(self) -> None:
        """Keep what was taken, and end."""
        ...
