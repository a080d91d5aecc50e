"""The prefix tree: match, insert, lock, evict, with values that it never looks into.

Owns the contract with clients: keys, handles, receipts, counts. It owns no memory pool: what it
lets go, it returns, and the caller frees. One thread writes; `peek`, `explain`, `sizes`, `stats`,
`namespaces` and `render` may be called beside it from any other.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from . import checks, integrity, reading
from . import policy as policies
from . import values as value_adapters
from .counters import Counters
from .explain import Explanation, explain
from .ghosts import Ghosts
from .handles import (
    Backup,
    Gone,
    Handle,
    Insertion,
    Load,
    Lock,
    Match,
    Sizes,
    Stats,
    Transfer,
)
from .host import HostTier
from .key import TOKEN_BYTES, Key, Namespace, TokenId, check_namespace
from .node import Node, path_to
from .observer import Observer
from .order import dfs_order
from .policy import EvictionPolicy
from .render import render
from .render.outline import Outline, take_outline, tokens_of
from .structure import Structure
from .tier import Tier
from .values import ValueAdapter

if TYPE_CHECKING:
    from .event_log import EventLog
    from .events import Event, EventOptions


class RadixCache:
    """A radix tree from token ids to values, one value per token, shared by prefix in whole pages.

    Args:
        page_size: tokens per page, 1 or more. Only whole pages are matched, stored and evicted.
        policy: which leaf is evicted first: a name (see `POLICY_NAMES`) or an `EvictionPolicy`.
        clock: seconds, never going back; stamps what a match or an insert covers.
        values: how to cut and join values: "sequence", "numpy", "torch", a `ValueAdapter`, or None
            to decide by the type of the first value inserted. One tier holds values of one type.
        host_tier: keep a second copy of values, in host memory, for what the device lets go.
        host_values: as `values`, for the host tier.
        write_through: at which use a node is due for a backup; the insert that brings it is the
            first use, each match one more.
        events: record events for `take_events` about blocks of so many tokens; see `EventOptions`
            in `phloem.radix_cache.events`.
        most_retained: tokens that may be retained at a time; beyond them the oldest marks count as
            none. None: any number.
        most_retained_each: the same for each namespace; None: as many as all of them together.
        ghosts: how many evicted runs of tokens to remember for `explain`; 0 for none.
    """

    def __init__(
        self,
        page_size: int = 1,
        policy: str | EvictionPolicy = "lru",
        clock: Callable[[], float] = time.monotonic,
        values: str | ValueAdapter | None = None,
        *,
        host_tier: bool = False,
        host_values: str | ValueAdapter | None = None,
        write_through: int = 1,
        events: int | EventOptions | None = None,
        most_retained: int | None = None,
        most_retained_each: int | None = None,
        ghosts: int = 1024,
    ) -> None:
        if not isinstance(page_size, int) or page_size < 1:
            raise ValueError(
                f"page_size {page_size} is no number of tokens: give an int, 1 or more"
            )
        self._clock = clock
        self._ghosts = Ghosts(ghosts, page_size) if ghosts > 0 else None
        # Imported only where it is used: it costs more time than the rest of the package.
        log = None if events is None else import_module(".event_log", __package__)
        self._events: EventLog | None = None if log is None else log.EventLog(events, page_size)
        observers: tuple[Observer | None, ...] = (self._ghosts, self._events)
        self._tree = tree = Structure(
            page_size=page_size,
            policy=policies.resolve(policy),
            device_values=value_adapters.resolve(values),
            host_values=value_adapters.resolve(host_values) if host_tier else None,
            observers=tuple(each for each in observers if each is not None),
        )
        self._device = tree.device
        self._host = None if tree.host is None else HostTier(self, tree, tree.host, write_through)
        self._counted = Counters()
        if most_retained is not None or most_retained_each is not None:
            most = sys.maxsize if most_retained is None else most_retained
            tree.bound_retention(most, most if most_retained_each is None else most_retained_each)

    @property
    def page_size(self) -> int:
        """Tokens per page."""
        return self._tree.page_size

    @property
    def policy(self) -> EvictionPolicy:
        """The eviction policy."""
        return self._tree.policy

    @property
    def value_adapter(self) -> ValueAdapter:
        """How the device's values are cut and joined."""
        return self._device.adapter

    def key(self, tokens: Sequence[TokenId], namespace: Namespace = ()) -> Key:
        """`Key(tokens, namespace)`, for a client that knows the cache only through a Protocol."""
        return Key(tokens, namespace)

    def match(self, key: Key) -> Match:
        """The longest cached prefix of `key`, in whole pages.

        May split a node at the end of the prefix. Counts a hit on the matched part, and on nothing
        else, and marks it as just used. O(length) compared at `memcmp` speed, plus O(log leaves).
        """
        tree = self._tree
        node = last = tree.descend(tree.root(key.namespace), key.data, self._clock(), hit=1)
        if self._host is not None:
            self._host.used(node)
            while node.device is None:
                assert node.parent is not None, "every root has a device copy"
                node = node.parent
        counted = self._counted
        counted.lookups += 1
        counted.lookup_tokens += len(key.data) // TOKEN_BYTES
        counted.hit_tokens += node.end
        counted.host_hit_tokens += last.end - node.end
        if self._events is not None:
            self._events.matched(node)
        return Match(self, node, last)

    def insert(
        self,
        key: Key,
        values: Any,
        priority: int = 0,
        retain_for: float | None = None,
        *,
        tier: Tier = Tier.DEVICE,
    ) -> Insertion:
        """Cache `values` for the whole pages of `key`; pages cached before keep what they have.

        `values` covers at least the whole pages of `key`, position by position. What is adopted is
        copied, so the caller may reuse the container; the values themselves belong to the tree
        until it lets them go. Marks the path as just used.

        Args:
            key: the tokens.
            values: one per token.
            priority: for the priority policy; new tokens get it, cached ones at least it.
            retain_for: seconds for which the path is evicted after everything that is not retained.
            tier: whose values these are; HOST brings back what was stored outside the cache.

        Raises, before anything changes, `ValueError` if `values` is too short or `retain_for` not
        positive, and `TypeError` if `priority` is no int or `values` of another type than those of
        the tier.
        """
        tree = self._tree
        ledger = tree.ledger(tier)
        root = tree.root(key.namespace)
        tokens = len(key) - len(key) % tree.page_size
        retained = checks.retention(retain_for, priority)
        if not tokens:
            return Insertion(self, root, 0, ())
        checks.enough(ledger.adapter.length(values), tokens, len(key), tree.page_size)
        now = self._clock()
        node = tree.descend(root, key.data, now, hit=0)
        known = node.end
        declined: tuple[range, ...] = (range(known),) if known else ()
        if ledger.of(node) is None:
            declined = tree.adopt(ledger, path_to(node), values, 0)
        if known < tokens:
            adopted = ledger.adapter.cut(values, known, tokens)
            edge = key.data[known * TOKEN_BYTES : tokens * TOKEN_BYTES]
            node = tree.grow(node, edge, ledger, adopted, now, priority)
        if priority or retained:
            tree.favour(node, priority, now, retained)
        if self._host is not None:
            self._host.used(node)
        kept = sum(map(len, declined))
        self._counted.inserted_tokens += tokens - kept
        self._counted.declined_tokens += kept
        return Insertion(self, node, tokens, declined)

    def lock(self, handle: Handle) -> Lock:
        """Keep the tokens of a match or an insertion on the device until `unlock`.

        A handle of zero tokens gives a receipt that protects nothing. Raises `StaleMatch` if any of
        the tokens left the device since the handle was made. O(depth).
        """
        copy = checks.device_copy(self, handle)
        self._device.lock(copy)
        return Lock(handle, copy)

    def unlock(self, lock: Lock) -> None:
        """Give a receipt back. Raises `LockReleased` if it was given back before."""
        checks.receipt(self, lock, Lock)
        lock.released = True
        self._device.unlock(lock.copy)

    def evict(self, n: int, tier: Tier = Tier.DEVICE) -> list[Any]:
        """Let go of `n` tokens of a tier, rounded up to whole pages, or of all unlocked if less.

        Takes whole pages off the tail of the leaf that the policy ranks first, then of the next; a
        parent that becomes an unlocked leaf joins. Returns the values let go, one segment for each
        leaf cut or removed, in the order of eviction; within a segment, values are in token order.
        What the other tier has a copy of stays cached there.
        O(evicted x log leaves), plus one copy of the node that is cut last.
        """
        ledger = self._tree.ledger(tier)
        gone, freed = self._tree.evict(ledger, n, self._now())
        self._counted.evicted_tokens[tier] += freed
        return gone

    def evict_idle(self, before: float) -> Gone:
        """Let go, in all tiers, of what was last used before `before`, a time of the clock.

        Spares what is locked, and what is still retained. O(nodes).
        """
        now = self._now()
        return self._let_go(
            *self._tree.prune(
                self._tree.roots.values(),
                lambda node: node.last_access < before and node.retained_until <= now,
            )
        )

    def backups(self, limit: int | None = None) -> list[Backup]:
        """What to copy from the device to the host now, parents first; pinned until that is done.

        Give each back to `backed_up` in this order, or to `cancel`; what was cancelled is due again
        at its next use. With `limit`, stops after so many tokens, and names the rest at the next
        call. `ValueError` without a host tier.
        """
        return self._tier_below().backups(limit)

    def backed_up(self, backup: Backup, host_values: Any) -> tuple[range, ...]:
        """The copy is made; `host_values` has one value for each of `backup.length` tokens.

        Returns the ranges of `host_values` that the tree did not adopt: where the host has values
        by now, and where it has none for the tokens before them, because their copy failed.
        """
        host = self._tier_below()
        checks.receipt(self, backup, Backup)
        return host.backed_up(backup, host_values)

    def load(self, match: Match) -> Load:
        """Begin to bring back what `match` found in the host tier only; pins all of it.

        Raises `StaleMatch` if any of the tokens left its tier since, `ValueError` if there are none
        or no host tier.
        """
        host = self._tier_below()
        device = checks.device_copy(self, match)
        return host.load(match, device, checks.host_copy(match))

    def loaded(self, load: Load, device_values: Any) -> Insertion:
        """The copy is made; `device_values` has one value for each of `load.length` tokens.

        The insertion's `declined` ranges are those of tokens that somebody inserted meanwhile; lock
        it before anything can be evicted.
        """
        host = self._tier_below()
        checks.receipt(self, load, Load)
        return host.loaded(load, device_values)

    def cancel(self, transfer: Transfer) -> None:
        """A copy failed or is not wanted any more: releases its pins, and changes nothing else."""
        host = self._tier_below()
        checks.receipt(self, transfer, Transfer)
        host.cancel(transfer)

    def drop(self, namespace: Namespace) -> Gone:
        """Empty one namespace, in all tiers, of everything that is not locked.

        What is locked stays as it was, can be matched, and keeps the namespace in `namespaces`:
        drop again after it was unlocked. (To keep computed values from ever being found again,
        change the namespace, not its contents.)
        """
        check_namespace(namespace)
        root = self._tree.roots.get(namespace)
        for observer in self._tree.observers:
            observer.dropping(namespace, root)
        return self._let_go(*self._tree.prune([] if root is None else [root]))

    def reset(self) -> Gone:
        """Empty the cache; returns all its values.

        Raises `CacheInUse`, changing nothing, while tokens are locked or a copy is in flight.
        """
        checks.unused(self._tree.ledgers)
        return self._let_go(*self._tree.clear())

    def peek(self, key: Key, tier: Tier = Tier.DEVICE) -> int:
        """How many tokens `match` would find. Changes nothing: no split, no refresh, no count.

        With Tier.HOST, counts those that only the host holds as well. Safe beside the writing
        thread: every token counted was cached at some moment of the call.
        """
        root = self._tree.roots.get(key.namespace)
        return reading.peek(root, key, self._tree.page_size, tier)

    def resident(self, key: Key, tier: Tier = Tier.DEVICE) -> Any:
        """The values of the longest prefix of `key` that a tier holds, joined, in whole pages.

        Changes nothing. For the writing thread.
        """
        root = self._tree.roots.get(key.namespace)
        return reading.resident(root, key, self._tree.page_size, self._tree.ledger(tier))

    def explain(self, key: Key) -> Explanation:
        """Why a match of `key` would end where it would, as far as its namespace can tell.

        Changes nothing. Safe beside the writing thread. O(length), plus O(children) of the node
        where the cached part ends.
        """
        root = self._tree.roots.get(key.namespace)
        return explain(root, self._ghosts, key, self._tree.page_size, self._clock())

    def take_events(self, resync: bool = False) -> list[Event]:
        """The events since the last call, oldest first; `[]` if the cache was made without.

        Whoever replays them all knows which whole blocks each tier has. With `resync`, for a
        listener that comes late, they end with `AllCleared` and with all that is stored now.
        """
        return [] if self._events is None else self._events.take(self._tree.roots, resync)

    def dfs_order(self, nodes: Iterable[Node]) -> list[int]:
        """The order that takes requests, given by the nodes they matched, depth first.

        Indices into `nodes`; see `phloem.radix_cache.order.dfs_order`.
        """
        return dfs_order(nodes)

    def values_of(self, source: Handle | Transfer) -> Any:
        """The joined values of a handle or a copy in flight; see their `values()`."""
        if isinstance(source, Handle):
            return self._device.values(checks.device_copy(self, source))
        checks.receipt(self, source, Transfer)
        return self._tier_below().values(source)

    def key_of(self, transfer: Transfer) -> Key:
        """The key of all tokens up to the last one of a copy in flight; see `Transfer.key`."""
        checks.receipt(self, transfer, Transfer)
        return reading.key_to(transfer.node)

    def iter_values(self, tier: Tier = Tier.DEVICE) -> Iterator[Any]:
        """Every value segment of a tier, parents first: the tree's own objects, only to read."""
        return reading.iter_values(self._tree, tier)

    def holder(self, value: Any, tier: Tier = Tier.DEVICE) -> str:
        """Which node has a value in a tier, in words, "no node" if none has. O(tokens)."""
        return reading.holder(self._tree, value, tier)

    @property
    def sizes(self) -> Sizes:
        """Tokens evictable, protected and in total, now; on the device, and under `host`."""
        return reading.sizes(self._tree)

    @property
    def namespaces(self) -> tuple[Namespace, ...]:
        """The namespaces that hold anything."""
        return tuple(self._tree.roots)

    @property
    def stats(self) -> Stats:
        """Counters since construction and counts of now."""
        return self._counted.stats(self._tree, self._host)

    def render(self, format: str = "text", limit: int | None = None) -> str:
        """The tree as "text", "json" or "dot" (Graphviz). Safe beside the writing thread.

        Of a tree with more than `limit` nodes, those that carry most tokens.
        """
        return render(self._tree, format, limit, self._clock())

    def outline(self, limit: int) -> Outline:
        """About the `limit` nodes that carry most tokens, at a cost that does not grow with the
        tree; for the writing thread.
        """
        return take_outline(self._tree, limit, self._clock())

    def outlined_tokens(self, id: tuple[int, int], limit: int) -> Sequence[TokenId] | None:
        """The first `limit` tokens of a node of an outline; None if it is there no more."""
        return tokens_of(self._tree, id, limit)

    def check_integrity(self) -> None:
        """Recount everything by walking the tree; for tests and idle times.

        Raises `IntegrityError` with the numbers.
        """
        integrity.check(self._tree, self._clock())

    def _now(self) -> float:
        """The time of an eviction, which ghosts will be dated by."""
        now = self._clock()
        if self._ghosts is not None:
            self._ghosts.now = now
        return now

    def _tier_below(self) -> HostTier:
        if self._host is None:
            self._tree.ledger(Tier.HOST)
        assert self._host is not None, "a structure without host tier refuses its ledger"
        return self._host

    def _let_go(self, gone: list[list[Any]], freed: list[int]) -> Gone:
        for tier, tokens in enumerate(freed):
            self._counted.evicted_tokens[tier] += tokens
        return Gone(gone[0], gone[1] if len(gone) > 1 else [])
