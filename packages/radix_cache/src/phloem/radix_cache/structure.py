"""The shape of the tree: roots, nodes and edges, split, grown, cut and pruned.

Owns how nodes hang together and keeps every tier's books in step with it. It does not know keys,
handles or receipts, and decides nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

from .key import TOKEN_BYTES, Namespace, common_prefix
from .ledger import Ledger
from .node import Copy, Node, Root
from .observer import Observer
from .policy import EvictionPolicy
from .retentions import Retentions
from .tier import Tier
from .values import ValueAdapter


class Structure:
    """Nodes with their copies in one tier or two. One thread writes."""

    def __init__(
        self,
        page_size: int,
        policy: EvictionPolicy,
        device_values: ValueAdapter,
        host_values: ValueAdapter | None,
        observers: tuple[Observer, ...],
    ) -> None:
        self.page_size = page_size
        self.page_bytes = page_size * TOKEN_BYTES
        self.policy = policy
        self.observers = observers
        self._tier_observers = tuple(each for each in observers if each.hears_of_copies)
        self.roots: dict[Namespace, Root] = {}
        self.nodes = 0
        self.floor: Any = 0.0
        self.device = Ledger(Tier.DEVICE, policy, device_values)
        self.host = None if host_values is None else Ledger(Tier.HOST, policy, host_values)
        self.ledgers = (self.device,) if self.host is None else (self.device, self.host)
        self._next_age = 0
        self._retentions: Retentions | None = None

    def observe(self, observer: Observer) -> None:
        """Tell one more of every change."""
        self.observers = (*self.observers, observer)

    def ledger(self, tier: Tier) -> Ledger:
        """The books of `tier`; `ValueError` if this cache has no such tier."""
        if tier == Tier.DEVICE:
            return self.device
        if Tier(tier) == Tier.HOST and self.host is None:
            raise ValueError(
                "this cache has one tier, the device: make it with RadixCache(host_tier=True)"
            )
        assert self.host is not None, "refused above"
        return self.host

    def root(self, namespace: Namespace) -> Root:
        """The root of a namespace; a loose one if the namespace holds nothing."""
        root = self.roots.get(namespace)
        return Root(namespace) if root is None else root

    def descend(self, root: Root, data: bytes, now: float, hit: int) -> Node:
        """The node where the longest cached prefix of `data` ends; touches the path, may split."""
        at, page, floor = 0, self.page_bytes, self.floor
        device_leaves, host = self.device.leaves, self.host
        node: Node = root
        while (child := node.children.get(data[at : at + page])) is not None:
            edge = child.data
            if not data.startswith(edge, at):
                child = self.split(node, child, common_prefix(edge, data, at, page))
                edge = child.data
            child.last_access = now
            child.hits += hit
            child.floor = floor
            if (copy := child.device) is not None and copy.entry is not None:
                device_leaves.refresh(copy)
            if host is not None and (copy := child.host) is not None and copy.entry is not None:
                host.leaves.refresh(copy)
            at += len(edge)
            node = child
        return node

    def favour(self, node: Node, priority: int, now: float, retain_for: float) -> None:
        """Raise the priority of a node and all above it, and prolong their retention; 0.0: not."""
        last, retentions = node, self._retentions
        longest = math.inf if retentions is None else retentions.longest
        until = now + retain_for if retain_for else 0.0
        while node.parent is not None:
            node.priority = max(node.priority, priority)
            if node.end <= longest:
                node.retained_until = max(node.retained_until, until)
            self._refresh(node)
            node = node.parent
        if retentions is not None and retain_for:
            assert isinstance(node, Root), f"{last} hangs from no root"
            retentions.mark(last, node, now)

    def bound_retention(self, most: int, most_each: int) -> None:
        """Retain at most so many tokens from here on, and of each namespace."""
        self._retentions = Retentions(most, most_each, self.unretain)
        self.observe(self._retentions)

    def unretain(self, node: Node) -> None:
        """End the retention of a node."""
        node.retained_until = 0.0
        for ledger in self.ledgers:
            if (copy := ledger.of(node)) is not None:
                ledger.leaves.unretained(copy)

    def split(self, parent: Node, lower: Node, at: int) -> Node:
        """Give the first `at` bytes of `lower` to a new node between it and `parent`; returns it.

        The old object stays the lower part, so that handles and locks on it keep their meaning.
        """
        tokens = at // TOKEN_BYTES
        upper = Node(
            lower.data[:at], parent, parent.end + tokens, lower.created, lower.age, lower.floor
        )
        upper.hits = lower.hits
        upper.last_access = lower.last_access
        upper.priority = lower.priority
        upper.retained_until = lower.retained_until
        # All values are cut before anything is changed: an adapter of somebody else's may raise.
        cuts = [ledger.cut(lower, tokens) for ledger in self.ledgers]
        for ledger, cut in zip(self.ledgers, cuts):
            ledger.split(upper, lower, cut)
        upper.children[lower.data[at : at + self.page_bytes]] = lower
        # The new node is published whole. A reader that meets `lower` before its data is cut sees
        # that it does not start where the new node ends.
        parent.children[upper.data[: self.page_bytes]] = upper
        lower.parent = upper
        lower.data = lower.data[at:]
        self._refresh(lower)
        self.nodes += 1
        for observer in self.observers:
            observer.split(upper, lower)
        return upper

    def grow(
        self,
        parent: Node,
        data: bytes,
        ledger: Ledger,
        values: Any,
        now: float,
        priority: int,
    ) -> Node:
        """Add a leaf under `parent` with one copy."""
        leaf = Node(
            data, parent, parent.end + len(data) // TOKEN_BYTES, now, self._next_age, self.floor
        )
        leaf.priority = priority
        self._next_age += 1
        for observer in self.observers:
            observer.linked(leaf)
        self.add_copy(ledger, leaf, values)
        if isinstance(parent, Root) and not parent.children:
            self.roots[parent.namespace] = parent
        parent.children[data[: self.page_bytes]] = leaf
        self.nodes += 1
        return leaf

    def add_copy(self, ledger: Ledger, node: Node, values: Any) -> None:
        """Give a node a copy in one more tier."""
        ledger.add(node, values)
        for observer in self._tier_observers:
            observer.gained(node, ledger.tier)

    def adopt(
        self, ledger: Ledger, path: Iterable[Node], values: Any, offset: int
    ) -> tuple[range, ...]:
        """Give the nodes of a path the copies they lack in one tier, as far as the tier reaches.

        `values` covers the tokens from `offset`. Returns the ranges of `values` that were not
        taken: those of nodes that have a copy, and of nodes whose parent has none.
        """
        declined: list[range] = []
        for node in path:
            start, stop = node.start - offset, node.end - offset
            parent = node.parent
            if ledger.of(node) is None and parent is not None and ledger.of(parent) is not None:
                self.add_copy(ledger, node, ledger.adapter.cut(values, start, stop))
            elif declined and declined[-1].stop == start:
                declined[-1] = range(declined[-1].start, stop)
            else:
                declined.append(range(start, stop))
        return tuple(declined)

    def evict(self, ledger: Ledger, n: int, now: float) -> tuple[list[Any], int]:
        """Let go of `n` tokens of a tier in whole pages; the value segments, and the tokens."""
        gone: list[Any] = []
        freed, page = 0, self.page_size
        leaves, on_device = ledger.leaves, ledger is self.device
        while freed < n:
            # At each turn: a parent that joined may bring a retention that has ended long ago.
            leaves.expire(now)
            if (copy := leaves.first()) is None:
                break
            if on_device:
                self._raise_floor(copy)
            length = copy.node.length
            take = -(-(n - freed) // page) * page
            if take < length:
                gone.append(self._shorten(ledger, copy, length - take))
            else:
                take = length
                gone.append(self._remove(ledger, copy))
            freed += take
        return gone, freed

    def prune(
        self, roots: Iterable[Root], idle: Callable[[Node], bool] | None = None
    ) -> tuple[list[list[Any]], list[int]]:
        """Remove every unlocked copy under `roots`; with `idle`, of the nodes that it names only.

        A copy stays while there is one below it. Returns, for each ledger, the value segments,
        parents first, and the tokens.
        """
        gone: list[list[Any]] = [[] for _ in self.ledgers]
        freed = [0 for _ in self.ledgers]
        for root in list(roots):
            nodes = _below(root)
            for node in reversed(nodes):
                if idle is not None and not idle(node):
                    continue
                length = node.length
                for at, ledger in enumerate(self.ledgers):
                    copy = ledger.of(node)
                    if copy is not None and not copy.locks and not copy.children:
                        gone[at].append(self._remove(ledger, copy, evicted=idle is not None))
                        freed[at] += length
        for segments in gone:
            segments.reverse()
        return gone, freed

    def clear(self) -> tuple[list[list[Any]], list[int]]:
        """`prune` of all roots, when nothing is locked; observers are told once."""
        told = self.observers, self._tier_observers
        self.observers = self._tier_observers = ()
        try:
            return self.prune(self.roots.values())
        finally:
            self.observers, self._tier_observers = told
            for observer in self.observers:
                observer.cleared()

    def _raise_floor(self, copy: Copy) -> None:
        assert copy.entry is not None, f"{copy} is in the index without an entry"
        rank = copy.entry[0]
        # A parent that joined the leaves may rank lower than what went before it.
        if self.floor == 0.0 or rank > self.floor:
            self.floor = rank

    def _refresh(self, node: Node) -> None:
        for ledger in self.ledgers:
            copy = ledger.of(node)
            if copy is not None and copy.entry is not None:
                ledger.leaves.refresh(copy)

    def _shorten(self, ledger: Ledger, copy: Copy, keep: int) -> Any:
        """Let the tokens of an evictable leaf of a tier past its first `keep` go."""
        node, parent = copy.node, copy.node.parent
        assert parent is not None, f"{copy} is evictable, and no root ever is"
        if any(other.of(node) for other in self.ledgers if other is not ledger):
            # What the other tier keeps stays a node of its own: the lower part, the old object.
            self.split(parent, node, keep * TOKEN_BYTES)
            return self._remove(ledger, copy)
        gone = ledger.trim(copy, keep)
        tail = node.data[keep * TOKEN_BYTES :]
        node.data = node.data[: keep * TOKEN_BYTES]
        node.end -= len(tail) // TOKEN_BYTES
        ledger.leaves.refresh(copy)
        for observer in self.observers:
            observer.trimmed(node, tail)
        return gone

    def _remove(self, ledger: Ledger, copy: Copy, evicted: bool = True) -> Any:
        """Let one copy go, and its node with the last; returns the values."""
        node = copy.node
        for observer in self._tier_observers:
            observer.losing(node, ledger.tier)
        gone = ledger.remove(copy)
        if node.device is None and node.host is None:
            self._unlink(node, evicted)
        return gone

    def _unlink(self, node: Node, evicted: bool) -> None:
        parent = node.parent
        assert parent is not None, f"{node} was taken out before"
        assert not node.children, f"{node} loses its last copy, and its children have theirs"
        for observer in self.observers:
            observer.unlinking(node, evicted)
        del parent.children[node.data[: self.page_bytes]]
        node.parent = None
        self.nodes -= 1
        if isinstance(parent, Root) and not parent.children:
            del self.roots[parent.namespace]


def _below(root: Root) -> list[Node]:
    """All nodes under a root, parents before children."""
    found: list[Node] = []
    stack: list[Node] = list(root.children.values())
    while stack:
        node = stack.pop()
        found.append(node)
        stack.extend(node.children.values())
    return found
