"""Which worker has seen which prefix: a size-bounded tree for cache-aware routers.

Owns the guess of what each worker's prefix cache holds, made from what was sent there, and the rule
that weighs it against the workers' loads. It owns no connection and no health check: the caller
says who may be chosen, and how busy each is.
"""

from __future__ import annotations

import sys
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Final, Generic, Literal, TypeVar

from sortedcontainers import SortedDict  # type: ignore[import-untyped]

from .key import TOKEN_BYTES, Key, Namespace, common_prefix

Worker = TypeVar("Worker", bound=Hashable)


def text_key(text: str, namespace: Namespace = ()) -> Key:
    """The key of a text, one token for each code point: for a router without a tokenizer."""
    codec = "utf-32-le" if sys.byteorder == "little" else "utf-32-be"
    # Surrogates pass: a router must not fail on what a client sent.
    return Key(memoryview(text.encode(codec, "surrogatepass")).cast("i"), namespace)


@dataclass(frozen=True, slots=True)
class Route(Generic[Worker]):
    """What a lookup of `asked` tokens found: how many of them each worker has seen, at the front.

    `lengths` has the workers that have seen at least a page, longest first.
    """

    asked: int
    lengths: Mapping[Worker, int]

    @property
    def length(self) -> int:
        """The longest of `lengths`; 0 if nobody has seen anything."""
        return next(iter(self.lengths.values()), 0)

    @property
    def workers(self) -> list[Worker]:
        """The workers that have seen the longest prefix."""
        return [worker for worker, length in self.lengths.items() if length == self.length]


@dataclass(frozen=True, slots=True)
class Choice(Generic[Worker]):
    """A worker, how many tokens of the key it has seen, and which rule chose it.

    `reason`: "balance" (the loads were too far apart), "cache" (it has seen enough of the key), or
    "load" (nobody has, so the least loaded).
    """

    worker: Worker
    length: int
    reason: Literal["balance", "cache", "load"]


@dataclass(frozen=True, slots=True)
class CacheAware:
    """The rule of a cache-aware router: send a request where its prefix is, unless that piles up.

    1. If the loads are unbalanced (highest - lowest > `balance_abs` and highest > `balance_rel` x
       lowest), the least loaded worker.
    2. Else the worker that has seen most of the key, if that is more than `cache_threshold` of it.
    3. Else the least loaded worker.

    Ties go to the less loaded worker, then to the one named first in `loads`. The three rules and
    their defaults are those of the SGLang gateway's `cache_aware` policy, which breaks ties
    otherwise.
    """

    cache_threshold: float = 0.5
    """A share of the key, 0 to 1."""
    balance_abs: float = 32
    """In the unit of the loads; requests in flight in the gateway."""
    balance_rel: float = 1.1

    def __post_init__(self) -> None:
        if not 0 <= self.cache_threshold <= 1:
            raise ValueError(
                f"cache_threshold {self.cache_threshold} is no share of a key: give 0 to 1"
            )

    def choose(self, route: Route[Worker], loads: Mapping[Worker, float]) -> Choice[Worker]:
        """The worker for a key.

        `loads` names exactly the workers that may be chosen, so leave out those that are unhealthy
        or draining: what they have seen does not count. Raises `ValueError` if it is empty.
        """
        if not loads:
            raise ValueError("loads is empty: name at least one worker that can take the request")
        lowest, highest = min(loads.values()), max(loads.values())
        if highest - lowest > self.balance_abs and highest > self.balance_rel * lowest:
            return self._least_loaded(route, loads, "balance")
        best = max(loads, key=lambda worker: (route.lengths.get(worker, 0), -loads[worker]))
        length = route.lengths.get(best, 0)
        if length > self.cache_threshold * route.asked:
            return Choice(best, length, "cache")
        return self._least_loaded(route, loads, "load")

    def _least_loaded(
        self,
        route: Route[Worker],
        loads: Mapping[Worker, float],
        reason: Literal["balance", "load"],
    ) -> Choice[Worker]:
        worker = min(loads, key=lambda worker: loads[worker])
        return Choice(worker, route.lengths.get(worker, 0), reason)


_DEFAULT_RULE: Final = CacheAware()


class _Seen:
    """What a node knows of one worker."""

    __slots__ = ("below", "stamp")

    def __init__(self, stamp: int, below: int) -> None:
        self.stamp = stamp
        """Serial number of the insert that last covered the node for this worker."""
        self.below = below
        """Children that the worker has seen too; its leaves have none."""


class _Node(Generic[Worker]):
    __slots__ = ("children", "data", "parent", "seen")

    def __init__(self, data: bytes, parent: _Node[Worker] | None) -> None:
        self.data = data
        self.parent = parent
        self.children: dict[bytes, _Node[Worker]] = {}
        self.seen: dict[Worker, _Seen] = {}
        """Who has seen the tokens up to the end of this node; always empty at a root."""


class _Root(_Node[Worker]):
    __slots__ = ("namespace",)

    def __init__(self, namespace: Namespace) -> None:
        super().__init__(b"", None)
        self.namespace = namespace


class _Leaves(Generic[Worker]):
    """The leaves of one worker, sorted by stamp, and how many tokens it has seen.

    Two leaves never have one stamp: an insert covers one path, which has one leaf.
    """

    __slots__ = ("by_stamp", "tokens")

    def __init__(self) -> None:
        self.by_stamp: SortedDict = SortedDict()
        self.tokens = 0

    def first(self) -> tuple[int, _Node[Worker]]:
        """Stamp and node of the leaf that was not used for longest."""
        entry: tuple[int, _Node[Worker]] = self.by_stamp.peekitem(0)
        return entry


class RoutingTree(Generic[Worker]):
    """Prefixes and the workers that have seen them, least recently used out first.

    A worker is any hashable name. `match` changes nothing; `insert` is what counts as use.

    Args:
        max_tokens_per_worker: how much of each worker's history is kept; about what its prefix
            cache holds is right, because older prefixes have left that too.
        max_tokens: how many tokens the tree stores in all; what several workers have seen is stored
            once. About 4 bytes each, plus a few hundred for each node and worker.
        page_size: only whole pages are matched and stored. Of tokens: the workers' page size.

    Not thread-safe: call it from one thread or event loop, or under a lock. Every call is short.
    """

    def __init__(
        self,
        max_tokens_per_worker: int = 2_000_000,
        max_tokens: int = 16_000_000,
        page_size: int = 1,
    ) -> None:
        for name, value in [
            ("max_tokens_per_worker", max_tokens_per_worker),
            ("max_tokens", max_tokens),
            ("page_size", page_size),
        ]:
            if value < 1:
                raise ValueError(f"{name} {value} is less than 1: give a number of tokens")
        self._max_per_worker = max_tokens_per_worker
        self._max_tokens = max_tokens
        self._page_bytes = page_size * TOKEN_BYTES
        self._roots: dict[Namespace, _Root[Worker]] = {}
        self._leaves: dict[Worker, _Leaves[Worker]] = {}
        self._tokens = 0
        self._inserts = 0

    def match(self, key: Key) -> Route[Worker]:
        """How much of `key` each worker has seen, in whole pages. Changes nothing.

        O(length) compared at `memcmp` speed, plus O(nodes on the path x workers).
        """
        node: _Node[Worker] = self._roots.get(key.namespace) or _Root(key.namespace)
        data, page, at = key.data, self._page_bytes, 0
        path: list[tuple[int, _Node[Worker]]] = []
        while (child := node.children.get(data[at : at + page])) is not None:
            whole = data.startswith(child.data, at)
            at += len(child.data) if whole else common_prefix(child.data, data, at, page)
            path.append((at // TOKEN_BYTES, child))
            if not whole:
                break
            node = child
        lengths: dict[Worker, int] = {}
        for length, node in reversed(path):
            for worker in node.seen:
                lengths.setdefault(worker, length)
            # Whoever has seen anything of the path has seen its first node.
            if len(lengths) == len(path[0][1].seen):
                break
        return Route(len(key), lengths)

    def insert(self, key: Key, worker: Worker) -> None:
        """Note that the whole pages of `key` were sent to `worker`.

        Then lets go of what was not used for longest until the bounds hold: of this worker's, then
        of anyone's. Of a prefix its end goes first. O(length + nodes on the path x log leaves), and
        O(workers) for each leaf let go for `max_tokens`.
        """
        data, page, at = key.data, self._page_bytes, 0
        end = len(data) - len(data) % page
        if not end:
            return
        stamp, self._inserts = self._inserts, self._inserts + 1
        leaves = self._leaves.setdefault(worker, _Leaves())
        node: _Node[Worker] = self._roots.setdefault(key.namespace, _Root(key.namespace))
        while at < end:
            child = node.children.get(data[at : at + page])
            if child is None:
                child = _Node(data[at:end], node)
                node.children[child.data[:page]] = child
                self._tokens += len(child.data) // TOKEN_BYTES
            elif not data.startswith(child.data, at):
                child = self._split(child, common_prefix(child.data, data, at, page))
            self._mark(child, worker, leaves, stamp)
            at += len(child.data)
            node = child
        if not node.seen[worker].below:
            leaves.by_stamp[stamp] = node
        self.evict(worker, leaves.tokens - self._max_per_worker)
        while self._tokens > self._max_tokens:
            oldest = min(self._leaves, key=lambda worker: self._leaves[worker].first()[0])
            self._evict_from_leaf(oldest, self._tokens - self._max_tokens)

    def route(
        self, key: Key, loads: Mapping[Worker, float], rule: CacheAware = _DEFAULT_RULE
    ) -> Choice[Worker]:
        """Match, choose by the rule, and note the choice: all that a router does with a request."""
        choice = rule.choose(self.match(key), loads)
        self.insert(key, choice.worker)
        return choice

    def evict(self, worker: Worker, tokens: int) -> None:
        """Forget `tokens` of what a worker has seen, in whole pages, the least recently used first.

        For a worker that reports its own evictions; the bounds are kept without it.
        """
        leaves = self._leaves.get(worker)
        while tokens > 0 and leaves is not None and leaves.tokens:
            tokens -= self._evict_from_leaf(worker, tokens)

    def remove(self, worker: Worker) -> None:
        """Forget a worker: it left, or its cache was emptied. Nothing happens if it is unknown."""
        self.evict(worker, self.tokens_of(worker))

    @property
    def workers(self) -> list[Worker]:
        """The workers of which anything is known, in the order they were first met."""
        return list(self._leaves)

    @property
    def namespaces(self) -> list[Namespace]:
        """The namespaces of which anything is known."""
        return list(self._roots)

    @property
    def tokens(self) -> int:
        """Tokens stored; what several workers have seen counts once."""
        return self._tokens

    def tokens_of(self, worker: Worker) -> int:
        """Tokens that a worker has seen and that are not forgotten."""
        leaves = self._leaves.get(worker)
        return 0 if leaves is None else leaves.tokens

    def _mark(
        self, node: _Node[Worker], worker: Worker, leaves: _Leaves[Worker], stamp: int
    ) -> None:
        """Let a worker have seen a node, whose parent it has seen in this insert too."""
        seen = node.seen.get(worker)
        if seen is not None:
            if not seen.below:
                del leaves.by_stamp[seen.stamp]
            seen.stamp = stamp
            return
        node.seen[worker] = _Seen(stamp, 0)
        leaves.tokens += len(node.data) // TOKEN_BYTES
        above = node.parent.seen.get(worker) if node.parent is not None else None
        if above is not None:
            above.below += 1

    def _split(self, lower: _Node[Worker], at: int) -> _Node[Worker]:
        """Give the first `at` bytes of a node to a new one above it; the old object stays below."""
        parent = lower.parent
        assert parent is not None, "a root has no tokens to split"
        upper = _Node(lower.data[:at], parent)
        upper.seen = {worker: _Seen(seen.stamp, 1) for worker, seen in lower.seen.items()}
        lower.data = lower.data[at:]
        lower.parent = upper
        upper.children[lower.data[: self._page_bytes]] = lower
        parent.children[upper.data[: self._page_bytes]] = upper
        return upper

    def _evict_from_leaf(self, worker: Worker, tokens: int) -> int:
        """Forget `tokens`, in whole pages, at the end of a worker's oldest leaf, or all of it.

        Returns how many were forgotten.
        """
        leaves = self._leaves[worker]
        stamp, leaf = leaves.first()
        pages = -(-tokens * TOKEN_BYTES // self._page_bytes)
        keep = len(leaf.data) - pages * self._page_bytes
        if keep > 0:
            self._split(leaf, keep)
        forgotten = len(leaf.data) // TOKEN_BYTES
        del leaves.by_stamp[stamp]
        del leaf.seen[worker]
        leaves.tokens -= forgotten
        if not leaves.tokens:
            del self._leaves[worker]
        parent = leaf.parent
        assert parent is not None, "a root is no leaf of anyone's"
        above = parent.seen.get(worker)
        if above is not None:
            above.below -= 1
            if not above.below:
                leaves.by_stamp[above.stamp] = parent
        if not leaf.seen:
            self._drop(leaf, parent)
        return forgotten

    def _drop(self, leaf: _Node[Worker], parent: _Node[Worker]) -> None:
        """Take out a node that nobody has seen any more; so it has no children."""
        self._tokens -= len(leaf.data) // TOKEN_BYTES
        del parent.children[leaf.data[: self._page_bytes]]
        if isinstance(parent, _Root) and not parent.children:
            del self._roots[parent.namespace]
