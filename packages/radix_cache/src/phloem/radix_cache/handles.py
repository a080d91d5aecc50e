"""What the tree hands out: matches, insertions and receipts, and the numbers it reports.

A handle names the first tokens of a cached path by the node where they end. It pins nothing by
itself; a receipt does. All of these are read-only to clients.
"""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

from .key import Key
from .node import Copy, Node

if TYPE_CHECKING:
    from .tree import RadixCache


class Handle:
    """`length` tokens (whole pages) that end at `node`. Survives splits, not eviction."""

    __slots__ = ("cache", "copy", "length", "node")

    def __init__(self, cache: RadixCache, node: Node, length: int) -> None:
        self.cache = cache
        self.node = node
        self.length = length
        # Remembered to tell it from another one that came in its place: its values are others.
        self.copy = node.device

    def values(self) -> Any:
        """The device values of these tokens, joined into one fresh value of `length` tokens.

        Of zero tokens it is the adapter's empty value: of the type of the first value inserted, or
        of the adapter named at construction; `()` while neither is known. Raises `StaleMatch` if
        the tokens have left the device.
        """
        return self.cache.values_of(self)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.length} tokens>"


class Match(Handle):
    """What `match` found: the longest cached prefix in whole pages, first that on the device.

    `host_length` counts the tokens after it that only the host tier holds; they end at `host_node`.
    Without a host tier that is 0 and `node`.
    """

    __slots__ = ("host_copy", "host_length", "host_node")

    def __init__(self, cache: RadixCache, node: Node, host_node: Node) -> None:
        super().__init__(cache, node, node.end)
        self.host_node = host_node
        self.host_copy = host_node.host
        self.host_length = host_node.end - node.end


class Insertion(Handle):
    """What `insert` or `loaded` did; the first `length` tokens of the key are cached now.

    `declined` holds the ranges of the given values that the tree did not adopt, because it had
    values for these tokens: they still belong to the caller. So do values past `length` (a partial
    page).
    """

    __slots__ = ("declined",)

    def __init__(
        self, cache: RadixCache, node: Node, length: int, declined: tuple[range, ...]
    ) -> None:
        super().__init__(cache, node, length)
        self.declined = declined


class Receipt:
    """Something that stays pinned until the receipt is given back, once."""

    __slots__ = ("cache", "length", "released")

    cache: RadixCache
    length: int
    """How many tokens it is about."""
    released: bool

    def __init__(self, cache: RadixCache, length: int) -> None:
        self.cache = cache
        self.length = length
        self.released = False


class Lock(Receipt):
    """Its tokens stay on the device until it is given to `unlock`. Also a context manager."""

    __slots__ = ("copy", "handle")

    handle: Handle
    copy: Copy
    """The lowest of the copies it protects."""

    def __init__(self, handle: Handle, copy: Copy) -> None:
        super().__init__(handle.cache, handle.length)
        self.handle = handle
        self.copy = copy

    @property
    def node(self) -> Node:
        """The node where the locked tokens end."""
        return self.handle.node

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
        self.cache.unlock(self)


class Transfer(Receipt):
    """Values on their way to the other tier: the tokens [start, start + length) of a path.

    Everything up to there stays where it is until the receipt is given back: with the new values to
    `backed_up` or `loaded`, or to `cancel` if the copy failed.
    """

    __slots__ = ("device", "host", "node", "start")

    node: Node
    """Where the tokens end."""
    start: int
    device: Copy
    """The lowest device copy that is pinned."""
    host: Copy
    """The lowest host copy that is pinned."""

    def __init__(self, cache: RadixCache, node: Node, start: int, device: Copy, host: Copy) -> None:
        super().__init__(cache, node.end - start)
        self.node = node
        self.start = start
        self.device = device
        self.host = host

    def values(self) -> Any:
        """The values to copy: `length` of them, joined, fresh. Ask before giving it back."""
        return self.cache.values_of(self)

    def key(self) -> Key:
        """The key of all tokens up to the last one that is copied. Ask before giving it back."""
        return self.cache.key_of(self)


class Backup(Transfer):
    """A copy from device to host."""

    __slots__ = ()


class Load(Transfer):
    """A copy from host to device."""

    __slots__ = ()


class TierSizes(NamedTuple):
    """Tokens in one tier: `total` = `evictable` + `protected` (locked, or pinned by a copy)."""

    evictable: int
    protected: int
    total: int


class Sizes(NamedTuple):
    """Tokens on the device, and in the host tier."""

    evictable: int
    protected: int
    total: int
    host: TierSizes


class Stats(NamedTuple):
    """Lookups, and tokens, counted since the cache was made; nodes, leaves, namespaces of now."""

    lookups: int
    lookup_tokens: int
    hit_tokens: int
    host_hit_tokens: int
    inserted_tokens: int
    declined_tokens: int
    evicted_tokens: int
    host_evicted_tokens: int
    backed_up_tokens: int
    loaded_tokens: int
    nodes: int
    evictable_leaves: int
    namespaces: int

    @property
    def hit_rate(self) -> float:
        """Share of the tokens looked up that were on the device; 0 before the first lookup."""
        return self.hit_tokens / self.lookup_tokens if self.lookup_tokens else 0.0


class Gone(list[Any]):
    """Device value segments that a cache let go; `host` has those of the host tier."""

    host: list[Any]

    def __init__(self, device: list[Any], host: list[Any]) -> None:
        super().__init__(device)
        self.host = host
