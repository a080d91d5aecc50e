"""The prefix tree: match, insert, lock, evict, with values that it never looks into.

Owns the tree, its sizes and the order of eviction. It owns no memory pool: what it lets go, it
returns, and the caller frees. One thread writes; `peek`, `sizes`, `stats` and `render` may be
called beside it from any other.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from . import integrity, render
from . import policy as policies
from . import values as value_adapters
from .errors import CacheInUse, LockReleased, StaleMatch
from .handles import Handle, Insertion, Lock, Match, Sizes, Stats
from .key import TOKEN_BYTES, Key, Namespace, TokenId, common_prefix
from .leaves import LeafIndex
from .node import Node, Root
from .policy import EvictionPolicy
from .values import ValueAdapter


class RadixCache:
    """A radix tree from token ids to values, one value per token, shared by prefix in whole pages.

    Args:
        page_size: tokens per page, 1 or more. Only whole pages are matched, stored and evicted.
        policy: which leaf is evicted first: a name ("lru") or an `EvictionPolicy`.
        clock: seconds, never going back; stamps what a match or an insert covers.
        values: how to cut and join values: "sequence", "numpy", "torch", a `ValueAdapter`, or None
            to decide by the type of the first value inserted. One cache holds values of one type.
    """

    def __init__(
        self,
        page_size: int = 1,
        policy: str | EvictionPolicy = "lru",
        clock: Callable[[], float] = time.monotonic,
        values: str | ValueAdapter | None = None,
    ) -> None:
        if page_size < 1:
            raise ValueError(f"page_size {page_size} is less than 1: give the tokens of a page")
        self._page_size = page_size
        self._page_bytes = page_size * TOKEN_BYTES
        self._clock = clock
        self._adapter = value_adapters.resolve(values)
        self._policy = policies.resolve(policy)
        self._leaves = LeafIndex(self._policy)
        self._roots: dict[Namespace, Root] = {}
        # Evictable and protected tokens: one tuple, so that a reader never sees half a change.
        self._counts = (0, 0)
        self._nodes = 0
        self._next_age = 0
        self._lookups = self._lookup_tokens = self._hit_tokens = 0
        self._inserted_tokens = self._declined_tokens = self._evicted_tokens = 0

    @property
    def page_size(self) -> int:
        """Tokens per page."""
        return self._page_size

    @property
    def policy(self) -> EvictionPolicy:
        """The eviction policy."""
        return self._policy

    def key(self, tokens: Sequence[TokenId], namespace: Namespace = ()) -> Key:
        """`Key(tokens, namespace)`, for a client that knows the cache only through a Protocol."""
        return Key(tokens, namespace)

    def match(self, key: Key) -> Match:
        """The longest cached prefix of `key`, in whole pages.

        May split a node at the end of the prefix. Counts a hit on the matched part, and on nothing
        else, and marks it as just used. O(length) compared at `memcmp` speed, plus O(log leaves).
        """
        root = self._root_of(key)
        node = self._descend(root, key.data, self._clock(), hit=1)
        self._lookups += 1
        self._lookup_tokens += len(key)
        self._hit_tokens += node.end
        return Match(self, node, node.end)

    def insert(self, key: Key, values: Any) -> Insertion:
        """Cache `values` for the whole pages of `key`; pages cached before keep what they have.

        `values` covers at least the whole pages of `key`, position by position. What is adopted is
        copied, so the caller may reuse the container; the values themselves belong to the tree
        until it lets them go. Marks the path as just used. Raises `ValueError` if `values` is too
        short, before anything changes.
        """
        root = self._root_of(key)
        tokens = len(key) - len(key) % self._page_size
        if not tokens:
            return Insertion(self, root, 0, ())
        given = self._adapter.length(values)
        if given < tokens:
            raise ValueError(
                f"{given} values were given for a key of {len(key)} tokens: its whole pages "
                f"(page_size {self._page_size}) need {tokens}"
            )
        now = self._clock()
        node = self._descend(root, key.data, now, hit=0)
        known = node.end
        if known < tokens:
            adopted = self._adapter.cut(values, known, tokens)
            edge = key.data[known * TOKEN_BYTES : tokens * TOKEN_BYTES]
            node = self._grow(node, edge, adopted, now)
            self._roots[key.namespace] = root
        self._inserted_tokens += tokens - known
        self._declined_tokens += known
        return Insertion(self, node, tokens, (range(known),) if known else ())

    def lock(self, handle: Handle) -> Lock:
        """Keep the tokens of a match or an insertion cached until `unlock`.

        A handle of zero tokens gives a receipt that protects nothing. Raises `StaleMatch` if any of
        the tokens left the cache since the handle was made. O(depth).
        """
        node = self._node_of(handle)
        gained = 0
        while node.parent is not None:
            if not node.locks:
                gained += node.length
                self._leaves.discard(node)
            node.locks += 1
            node = node.parent
        self._account(-gained, gained)
        return Lock(handle)

    def unlock(self, lock: Lock) -> None:
        """Give a receipt back. Raises `LockReleased` if it was given back before."""
        if lock.handle.cache is not self:
            raise ValueError("the lock belongs to another cache: unlock it there")
        if lock.released:
            raise LockReleased(
                f"the lock on {lock.length} tokens was released before: unlock each lock once"
            )
        lock.released = True
        node, lost = lock.node, 0
        while node.parent is not None:
            node.locks -= 1
            if not node.locks:
                lost += node.length
                if not node.children:
                    self._leaves.add(node)
            node = node.parent
        self._account(lost, -lost)

    def evict(self, n: int) -> list[Any]:
        """Let go of `n` tokens, rounded up to whole pages, or of all that is unlocked if less.

        Takes whole pages off the tail of the leaf that the policy ranks first, then of the next; a
        parent that becomes an unlocked leaf joins. Returns the values let go, one segment for each
        leaf cut or removed, in the order of eviction; within a segment, values are in token order.
        O(evicted x log leaves), plus one copy of the node that is cut last.
        """
        gone: list[Any] = []
        freed = 0
        while freed < n and (leaf := self._leaves.first()) is not None:
            take = -(-(n - freed) // self._page_size) * self._page_size
            if take < leaf.length:
                gone.append(self._trim(leaf, take))
            else:
                take = leaf.length
                gone.append(self._remove(leaf))
            freed += take
        self._account(-freed, 0)
        self._evicted_tokens += freed
        return gone

    def drop(self, namespace: Namespace) -> list[Any]:
        """Empty one namespace of everything that is not locked; returns the values let go.

        What is locked stays as it was, can be matched, and keeps the namespace in `namespaces`:
        drop again after it was unlocked. (To keep computed values from ever being found again,
        change the namespace, not its contents.)
        """
        root = self._roots.get(namespace)
        return [] if root is None else self._prune([root])

    def reset(self) -> list[Any]:
        """Empty the cache; returns all its values.

        Raises `CacheInUse`, changing nothing, while tokens are locked.
        """
        protected = self._counts[1]
        if protected:
            raise CacheInUse(f"{protected} tokens are locked: unlock them before reset")
        return self._prune(list(self._roots.values()))

    def peek(self, key: Key) -> int:
        """How many tokens `match` would find. Changes nothing: no split, no refresh, no count.

        Safe beside the writing thread: every token counted was cached at some moment of the call.
        """
        while True:
            found = self._peek_once(key)
            if found is not None:
                return found

    def values_of(self, handle: Handle) -> Any:
        """The joined values of a handle; see `Handle.values`."""
        node = self._node_of(handle)
        parts = []
        while node.parent is not None:
            parts.append(node.values)
            node = node.parent
        return self._adapter.join(parts[::-1])

    def iter_values(self) -> Iterator[Any]:
        """The value segment of every node, parents first: the tree's own objects, only to read."""
        stack: list[Node] = list(self._roots.values())
        while stack:
            for child in stack.pop().children.values():
                yield child.values
                stack.append(child)

    @property
    def sizes(self) -> Sizes:
        """Tokens evictable, protected and in total, now."""
        evictable, protected = self._counts
        return Sizes(evictable, protected, evictable + protected)

    @property
    def namespaces(self) -> tuple[Namespace, ...]:
        """The namespaces that hold anything."""
        return tuple(self._roots)

    @property
    def stats(self) -> Stats:
        """Counters since construction and counts of now."""
        return Stats(
            lookups=self._lookups,
            lookup_tokens=self._lookup_tokens,
            hit_tokens=self._hit_tokens,
            inserted_tokens=self._inserted_tokens,
            declined_tokens=self._declined_tokens,
            evicted_tokens=self._evicted_tokens,
            nodes=self._nodes,
            evictable_leaves=len(self._leaves),
            namespaces=len(self._roots),
        )

    def render(self) -> str:
        """The tree as indented text, a line for each node. Safe beside the writing thread."""
        return render.text(list(self._roots.values()))

    def check_integrity(self) -> None:
        """Recount everything by walking the tree; for tests and idle times.

        Raises `IntegrityError` with the numbers.
        """
        integrity.check(
            roots=self._roots,
            page_size=self._page_size,
            counts=self._counts,
            nodes=self._nodes,
            leaves=self._leaves.nodes(),
            policy=self._policy,
            adapter=self._adapter,
        )

    def _root_of(self, key: Key) -> Root:
        """The root of the key's namespace; a loose one if the namespace holds nothing."""
        root = self._roots.get(key.namespace)
        return Root(key.namespace) if root is None else root

    def _node_of(self, handle: Handle) -> Node:
        """The node of a handle, if its tokens are all still cached."""
        if handle.cache is not self:
            raise ValueError("the handle belongs to another cache: use it there")
        node = handle.node
        # A removed node has no parent; a node whose tail was evicted ends earlier than the handle.
        if handle.length and (node.parent is None or node.end != handle.length):
            raise StaleMatch(
                f"the {handle.length} tokens of this handle were evicted, in part or whole, since "
                "it was made: match again, and lock before anything can be evicted"
            )
        return node

    def _account(self, evictable: int, protected: int) -> None:
        self._counts = (self._counts[0] + evictable, self._counts[1] + protected)

    def _descend(self, root: Root, data: bytes, now: float, hit: int) -> Node:
        """The node where the longest cached prefix of `data` ends; touches the path, may split."""
        at, page = 0, self._page_bytes
        node: Node = root
        while (child := node.children.get(data[at : at + page])) is not None:
            if not data.startswith(child.data, at):
                child = self._split(node, child, common_prefix(child.data, data, at, page))
            child.last_access = now
            child.hits += hit
            self._leaves.refresh(child)
            at += len(child.data)
            node = child
        return node

    def _split(self, parent: Node, lower: Node, at: int) -> Node:
        """Give the first `at` bytes of `lower` to a new node between it and `parent`; returns it.

        The old object stays the lower part, so that handles and locks on it keep their meaning.
        """
        tokens, length = at // TOKEN_BYTES, lower.length
        head = self._adapter.cut(lower.values, 0, tokens)
        tail = self._adapter.cut(lower.values, tokens, length)
        upper = Node(lower.data[:at], head, parent, parent.end + tokens, lower.created, lower.age)
        upper.locks = lower.locks
        upper.hits = lower.hits
        upper.last_access = lower.last_access
        upper.children[lower.data[at : at + self._page_bytes]] = lower
        # The new node is published whole. A reader that meets `lower` before its data is cut sees
        # that it does not start where the new node ends.
        parent.children[upper.data[: self._page_bytes]] = upper
        lower.parent = upper
        lower.values = tail
        lower.data = lower.data[at:]
        self._leaves.refresh(lower)
        self._nodes += 1
        return upper

    def _grow(self, parent: Node, data: bytes, values: Any, now: float) -> Node:
        """Add a leaf under `parent`."""
        end = parent.end + len(data) // TOKEN_BYTES
        leaf = Node(data, values, parent, end, now, self._next_age)
        self._next_age += 1
        self._leaves.discard(parent)
        self._leaves.add(leaf)
        parent.children[data[: self._page_bytes]] = leaf
        self._nodes += 1
        self._account(leaf.length, 0)
        return leaf

    def _trim(self, leaf: Node, tokens: int) -> Any:
        """Cut the last `tokens` off a leaf that has more; returns their values."""
        keep = leaf.length - tokens
        gone = self._adapter.cut(leaf.values, keep, leaf.length)
        leaf.values = self._adapter.cut(leaf.values, 0, keep)
        leaf.data = leaf.data[: keep * TOKEN_BYTES]
        leaf.end -= tokens
        self._leaves.refresh(leaf)
        return gone

    def _remove(self, leaf: Node) -> Any:
        """Take an unlocked leaf out of the tree; returns its values."""
        parent = leaf.parent
        assert parent is not None, f"{leaf} is in the index of leaves, and no root ever is"
        del parent.children[leaf.data[: self._page_bytes]]
        gone = self._detach(leaf)
        if not parent.children:
            if isinstance(parent, Root):
                del self._roots[parent.namespace]
            elif not parent.locks:
                self._leaves.add(parent)
        return gone

    def _detach(self, node: Node) -> Any:
        """Mark a node as gone: handles to it are stale and keep no values alive. Returns those."""
        gone = node.values
        node.values = node.parent = None
        self._leaves.discard(node)
        self._nodes -= 1
        return gone

    def _prune(self, roots: Iterable[Root]) -> list[Any]:
        """Remove all that is unlocked under `roots`; returns the values, parents first."""
        gone: list[Any] = []
        freed = 0
        for root in roots:
            stack: list[Node] = [root]
            while stack:
                node = stack.pop()
                for page, child in list(node.children.items()):
                    stack.append(child)
                    if not child.locks:
                        del node.children[page]
                        freed += child.length
                        gone.append(self._detach(child))
            if not root.children:
                del self._roots[root.namespace]
        self._account(-freed, 0)
        self._evicted_tokens += freed
        return gone

    def _peek_once(self, key: Key) -> int | None:
        """One attempt at `peek`; None if the writer changed a node under it."""
        data, page = key.data, self._page_bytes
        at = 0
        node: Node = self._root_of(key)
        while (child := node.children.get(data[at : at + page])) is not None:
            edge = child.data
            # A split shortens `data` from the front and keeps `end`; a trim shortens both from the
            # back, one after the other. So the start comes out right only if neither happened.
            if child.end * TOKEN_BYTES - len(edge) != at:
                return None
            if not data.startswith(edge, at):
                return (at + common_prefix(edge, data, at, page)) // TOKEN_BYTES
            at += len(edge)
            node = child
        return at // TOKEN_BYTES
