"""The record of what a cache stores and lets go, kept until somebody takes it.

Owns the hashes on the nodes and the buffer of events. A block belongs to the node that its last
token lies in, so it is stored when that token comes, though its first tokens may lie in the nodes
above, and removed when that token goes.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from .events import (
    AllCleared,
    BlockHash,
    BlockRemoved,
    BlockStored,
    Event,
    EventOptions,
    EventsLost,
    PrefixReused,
    chain,
    namespace_seed,
)
from .key import TOKEN_BYTES, Namespace
from .node import Node, Root
from .observer import Observer
from .tier import Tier


class NodeHashes(NamedTuple):
    """The hashes of the blocks that end in a node, and the namespace it is in."""

    namespace: Namespace
    hashes: tuple[BlockHash, ...]


class EventLog(Observer):
    """Records events; costs O(tokens) hashing for an insert, and O(block_size) for the rest."""

    hears_of_copies = True

    def __init__(self, options: int | EventOptions, page_size: int) -> None:
        if isinstance(options, int):
            options = EventOptions(options)
        size = options.block_size
        if size % page_size:
            # In a page of several blocks, two pages that part late would both store its first one.
            raise ValueError(
                f"event block_size {size} is no multiple of page_size {page_size}: give one that is"
            )
        self._block_size = size
        self._buffer = _Buffer(size, options.capacity)

    def take(self, roots: Mapping[Namespace, Root], resync: bool) -> list[Event]:
        """See `RadixCache.take_events`."""
        events = self._buffer.take()
        if resync:
            events.append(AllCleared())
        if resync or (events and isinstance(events[0], EventsLost)):
            events += self._snapshot(roots.values())
        return events

    def linked(self, node: Node) -> None:
        """Hash the blocks that end in it."""
        if node.end // self._block_size == node.start // self._block_size:
            return
        namespace, previous = _above(node)
        if previous is None:
            previous = namespace_seed(namespace)
        hashes = chain(previous, self._lead_in(node) + node.data, self._block_size)
        node.hashes = NodeHashes(namespace, tuple(hashes))

    def gained(self, node: Node, tier: Tier) -> None:
        """Its blocks are stored in the tier."""
        self._store(self._buffer, node, tier)

    def losing(self, node: Node, tier: Tier) -> None:
        """Its blocks are removed from the tier."""
        if node.hashes is not None:
            self._buffer.remove(node.hashes.namespace, tier, node.hashes.hashes)

    def split(self, upper: Node, lower: Node) -> None:
        """Each part keeps the hashes of the blocks that end in it."""
        if lower.hashes is None:
            return
        namespace, hashes = lower.hashes
        ends = self._ends_in(upper)
        upper.hashes = NodeHashes(namespace, hashes[:ends]) if ends else None
        lower.hashes = NodeHashes(namespace, hashes[ends:]) if ends < len(hashes) else None

    def trimmed(self, node: Node, tail: bytes) -> None:
        """The blocks that ended in the tail are removed."""
        if node.hashes is None:
            return
        namespace, hashes = node.hashes
        ends = self._ends_in(node)
        node.hashes = NodeHashes(namespace, hashes[:ends]) if ends else None
        if ends < len(hashes):
            tier = Tier.HOST if node.device is None else Tier.DEVICE
            self._buffer.remove(namespace, tier, hashes[ends:])

    def cleared(self) -> None:
        """Nothing is stored any more."""
        self._buffer.add(AllCleared())

    def matched(self, node: Node) -> None:
        """A match found all tokens down to `node` on the device; `node` may be a root."""
        blocks = node.end // self._block_size
        if blocks:
            namespace, deepest = _above(node) if node.hashes is None else _last(node.hashes)
            assert deepest is not None, f"{blocks} blocks end at {node} or above it"
            self._buffer.add(PrefixReused(deepest, blocks, node.end, namespace))

    def _ends_in(self, node: Node) -> int:
        """How many blocks end in a node."""
        return node.end // self._block_size - node.start // self._block_size

    def _lead_in(self, node: Node) -> bytes:
        """The tokens above a node that its first block begins with."""
        missing = node.start % self._block_size * TOKEN_BYTES
        parts: list[bytes] = []
        above = node.parent
        while missing:
            assert above is not None, f"{node} starts at {node.start}, so nodes lie above it"
            parts.append(above.data[-missing:])
            missing -= len(parts[-1])
            above = above.parent
        parts.reverse()
        return b"".join(parts)

    def _store(self, buffer: _Buffer, node: Node, tier: Tier) -> None:
        if node.hashes is not None:
            namespace, hashes = node.hashes
            data = self._lead_in(node) + node.data
            data = data[: len(hashes) * self._block_size * TOKEN_BYTES]
            buffer.store(namespace, tier, _above(node)[1], hashes, data)

    def _snapshot(self, roots: Iterable[Root]) -> list[Event]:
        """Events that store all there is."""
        buffer = _Buffer(self._block_size, None)
        for tier in Tier:
            stack: list[Node] = list(roots)
            while stack:
                node = stack.pop()
                if (node.device if tier == Tier.DEVICE else node.host) is not None:
                    self._store(buffer, node, tier)
                    stack.extend(node.children.values())
        return buffer.take()


class _Stored(NamedTuple):
    """A `BlockStored` that may still grow."""

    namespace: Namespace
    tier: Tier
    parent: BlockHash | None
    hashes: list[BlockHash]
    data: list[bytes]


class _Removed(NamedTuple):
    """A `BlockRemoved` that may still grow."""

    namespace: Namespace
    tier: Tier
    hashes: list[BlockHash]


class _Buffer:
    """Events not taken yet, neighbours joined where they continue each other.

    Tokens are kept as bytes until they are taken. Once `capacity` is exceeded it only counts.
    """

    def __init__(self, block_size: int, capacity: int | None) -> None:
        self._block_size = block_size
        self._capacity = capacity
        self._pending: list[_Stored | _Removed | Event] = []
        self._size = 0
        self._lost = 0

    def store(
        self,
        namespace: Namespace,
        tier: Tier,
        parent: BlockHash | None,
        hashes: tuple[BlockHash, ...],
        data: bytes,
    ) -> None:
        if not self._has_room(len(hashes)):
            return
        last = self._pending[-1] if self._pending else None
        if isinstance(last, _Stored) and last.hashes[-1] == parent and last.tier == tier:
            last.hashes.extend(hashes)
            last.data.append(data)
        else:
            self._pending.append(_Stored(namespace, tier, parent, list(hashes), [data]))

    def remove(self, namespace: Namespace, tier: Tier, hashes: tuple[BlockHash, ...]) -> None:
        """`hashes` in the order of the path."""
        if not self._has_room(len(hashes)):
            return
        last = self._pending[-1] if self._pending else None
        if not (isinstance(last, _Removed) and last.tier == tier and last.namespace == namespace):
            last = _Removed(namespace, tier, [])
            self._pending.append(last)
        last.hashes.extend(reversed(hashes))

    def add(self, event: AllCleared | PrefixReused) -> None:
        if self._has_room(0):
            self._pending.append(event)

    def take(self) -> list[Event]:
        events = [self._finished(each) for each in self._pending]
        if self._lost:
            events = [EventsLost(self._lost)]
        self._pending = []
        self._size = self._lost = 0
        return events

    def _has_room(self, blocks: int) -> bool:
        if self._lost:
            self._lost += 1
            return False
        self._size += 1 + blocks
        if self._capacity is not None and self._size > self._capacity:
            self._lost = len(self._pending) + 1
            self._pending = []
            return False
        return True

    def _finished(self, event: _Stored | _Removed | Event) -> Event:
        if isinstance(event, _Stored):
            tokens = tuple(array("i", b"".join(event.data)))
            return BlockStored(
                tuple(event.hashes),
                event.parent,
                tokens,
                self._block_size,
                event.namespace,
                event.tier,
            )
        if isinstance(event, _Removed):
            return BlockRemoved(tuple(event.hashes), event.tier, event.namespace)
        return event


def _last(hashes: NodeHashes) -> tuple[Namespace, BlockHash]:
    return hashes.namespace, hashes.hashes[-1]


def _above(node: Node) -> tuple[Namespace, BlockHash | None]:
    """The namespace of a node, and the hash of the last block that ends above it.

    Fewer than block_size nodes lie between two ends of blocks.
    """
    above = node.parent
    while above is not None and above.hashes is None:
        if isinstance(above, Root):
            return above.namespace, None
        above = above.parent
    assert above is not None, f"{node} is not in a tree"
    assert above.hashes is not None, "the walk ended at hashes"
    return _last(above.hashes)
