"""A KV cache manager for schedulers with block tables, in the manner of vLLM's `KVCacheManager`.

Owns the ids of a pool of equal blocks and says which request holds which; the tree remembers the
blocks of what was computed. It knows block ids only: the KV itself, and the steps that write it,
are the runtime's. One thread calls it.

    total = null block + free + tree (evictable + in use) + own blocks of requests

One request, whose block table is `[0, allocated)`:

    [0, shared)            the tree's blocks, locked by this request, maybe by others too
    [shared, allocated)    its own: partly computed, or not in the tree yet

Three things differ from vLLM's. Only computed tokens are cached: a block enters the tree when the
request comes back with `num_computed_tokens` past its end, not when it is scheduled, so a step that
fails leaves nothing wrong behind. A look-up only counts: it pins nothing, refreshes nothing and
names no ids, since without a pin an id may be another's by the time it is used. And no two blocks
hold the same prefix for longer than it takes to notice: where another request cached the same
tokens first, ours takes over its blocks and frees the duplicates (see `take_moved`).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ..errors import IntegrityError, StaleMatch
from ..handles import Lock
from ..key import Key, Namespace
from ..tree import RadixCache
from .block_checks import check_counts, check_hit, check_pool
from .block_tokens import RequestTokens, namespace_of
from .blocks import (
    NULL_BLOCK,
    BlockId,
    BlockIds,
    BlockRequest,
    CachedPrefix,
    Content,
    KVCacheBlocks,
    PrefixCacheStats,
)

if TYPE_CHECKING:
    from ..events import Event

__all__ = [
    "NULL_BLOCK",
    "BlockId",
    "BlockIds",
    "BlockRequest",
    "CachedPrefix",
    "Content",
    "KVCacheBlocks",
    "KVCacheManager",
    "PrefixCacheStats",
]


class _Table:
    """The block table of a request that holds blocks; see the module's picture."""

    __slots__ = ("blocks", "lock", "namespace", "shared", "tokens")

    def __init__(self, namespace: Namespace) -> None:
        self.blocks: list[BlockId] = []
        self.shared = 0
        self.lock: Lock | None = None
        self.namespace = namespace
        # The tokens as the tree knows them, packed once, as far as they were needed.
        self.tokens = array("i")


class KVCacheManager:
    """Hands blocks to requests and finds those that hold what a request needs.

    Args:
        num_blocks: size of the pool with the null block, 2 or more.
        block_size: tokens per block.
        cache: an empty `RadixCache(page_size=block_size, values=BlockIds(block_size))` with the
            policy, clock and events that you want; without, one with the defaults.
        enable_caching: False looks nothing up and remembers nothing.
        max_model_len: slots beyond this many tokens are never reserved for a request.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        cache: RadixCache | None = None,
        enable_caching: bool = True,
        max_model_len: int | None = None,
    ) -> None:
        if cache is None:
            cache = RadixCache(page_size=block_size, values=BlockIds(block_size))
        check_pool(num_blocks, block_size, cache)
        self._cache = cache
        self._block_size = block_size
        self._num_blocks = num_blocks
        self._enable_caching = enable_caching
        self._max_model_len = max_model_len
        self._free = list(range(num_blocks - 1, NULL_BLOCK, -1))
        self._tables: dict[str, _Table] = {}
        self._moved: set[str] = set()
        self._tokens = RequestTokens()
        self._stats = PrefixCacheStats()

    @property
    def cache(self) -> RadixCache:
        """The tree: to explain, render, measure. Only the manager may change it."""
        return self._cache

    @property
    def block_size(self) -> int:
        """Tokens per block."""
        return self._block_size

    @property
    def num_blocks(self) -> int:
        """Size of the pool, with the null block."""
        return self._num_blocks

    @property
    def num_free_blocks(self) -> int:
        """Blocks that an allocation can have: free ones, and cached ones that no request holds."""
        return len(self._free) + self._cache.sizes.evictable // self._block_size

    @property
    def usage(self) -> float:
        """Share of the pool that requests hold, 0 to 1. What is only cached counts as free."""
        return 1 - self.num_free_blocks / (self._num_blocks - 1)

    def get_computed_blocks(self, request: BlockRequest) -> tuple[CachedPrefix, int]:
        """How many leading tokens of a request without blocks are cached: full blocks, not all.

        At most `num_tokens - 1`: the last token has to be computed, for its logits. Changes
        nothing and pins nothing; give both results to `allocate_slots`, before anything else is
        allocated.
        """
        if not self._enable_caching:
            return CachedPrefix(Key((), ()), 0), 0
        tokens = array("i")
        self._tokens.extend(tokens, request, request.num_tokens - 1)
        key = Key(tokens, namespace_of(request))
        found = self._cache.peek(key)
        return CachedPrefix(key, found), found

    def allocate_slots(
        self,
        request: BlockRequest,
        num_new_tokens: int,
        num_new_computed_tokens: int = 0,
        new_computed_blocks: CachedPrefix | None = None,
        num_lookahead_tokens: int = 0,
        num_external_computed_tokens: int = 0,
        delay_cache_blocks: bool = False,
        full_sequence_must_fit: bool = False,
        reserved_blocks: int = 0,
    ) -> KVCacheBlocks | None:
        """Reserve slots for the next step of a request; all of them, or None if there is no room.

            | computed | new_computed | external | new | lookahead |
            |          |   touched    |       newly allocated      |

        Caches the full blocks that were computed since the last call first, room or not.

        Args:
            request: one that holds blocks, or a new one (also one that was preempted and freed).
            num_new_tokens: tokens that the step computes, drafts included.
            num_new_computed_tokens: of a new request, what `get_computed_blocks` counted, or less
                in full blocks. Only this touches: it locks them, counts the hit, refreshes them.
            new_computed_blocks: what `get_computed_blocks` gave with that number.
            num_lookahead_tokens: slots for tokens that a draft model will write.
            num_external_computed_tokens: tokens after these whose KV is brought from elsewhere.
            delay_cache_blocks: cache nothing now: `num_computed_tokens` counts KV still on its way.
            full_sequence_must_fit: None also if all of the request's tokens would not fit now.
            reserved_blocks: leave this many to others.

        Returns the blocks appended to the request's table, without the touched ones (`get_blocks`
        has all), or None, and then the request holds what it held. Raises `StaleMatch` if what was
        looked up was evicted since; `ValueError`, before anything changes, for numbers that make
        no sense and for token ids below 0.
        """
        hit, external = num_new_computed_tokens, num_external_computed_tokens
        check_counts(num_new_tokens, num_lookahead_tokens, external, reserved_blocks)
        table = self._tables.get(request.request_id)
        check_hit(request, table is None, hit, new_computed_blocks, self._block_size)
        if table is not None and not delay_cache_blocks:
            self._publish(request, table, request.num_computed_tokens)
        end = request.num_computed_tokens + hit + external + num_new_tokens + num_lookahead_tokens
        to_fit = max(end, request.num_tokens) if full_sequence_must_fit else end
        return self._reserve(request, hit, new_computed_blocks, end, to_fit, reserved_blocks)

    def cache_blocks(self, request: BlockRequest, num_computed_tokens: int) -> None:
        """Cache the full blocks of the first `num_computed_tokens` tokens of a request now.

        For a runtime that has a step's results and wants others to find them in the next, or that
        had `delay_cache_blocks` and has the KV now. Never caches beyond `num_tokens`.
        """
        self._publish(request, self._table_of(request.request_id), num_computed_tokens)

    def free(self, request: BlockRequest, *, cache_computed: bool = True) -> None:
        """Take a request's blocks back: at its end, or to preempt it. Without blocks, does nothing.

        Its computed full blocks stay cached, to be evicted from the last one to the first. Call it
        while `num_computed_tokens` is still true, or with `cache_computed=False` if it never was:
        a step or a transfer failed.

        A step in flight may still use these blocks: that is sound if steps run in order, since
        only later ones can get them.
        """
        table = self._tables.get(request.request_id)
        if table is None:
            return
        if cache_computed:
            self._publish(request, table, request.num_computed_tokens)
        del self._tables[request.request_id]
        self._moved.discard(request.request_id)
        self._free.extend(reversed(table.blocks[table.shared :]))
        self._unlock(table)

    def get_blocks(self, request_id: str) -> KVCacheBlocks:
        """The whole block table of a request; empty if it holds no blocks."""
        table = self._tables.get(request_id)
        return KVCacheBlocks(() if table is None else tuple(table.blocks))

    def get_block_ids(self, request_id: str) -> tuple[list[BlockId], ...]:
        """`get_blocks(request_id).get_block_ids()`."""
        return self.get_blocks(request_id).get_block_ids()

    def take_moved(self) -> dict[str, KVCacheBlocks]:
        """Requests of which blocks at the front of the table were replaced since the last call.

        With their whole tables. Replaced blocks hold KV of the same tokens after the same tokens,
        but are free now. So whoever keeps copies of the tables asks after scheduling a step, and
        sends these tables with it; steps already in flight may run on with the old ones, if steps
        run in order.
        """
        moved = {request_id: self.get_blocks(request_id) for request_id in sorted(self._moved)}
        self._moved.clear()
        return moved

    def reset_prefix_cache(self) -> bool:
        """Forget all that is cached; False, and nothing done, while a request has blocks."""
        if self._tables:
            return False
        self._regain(self._cache.reset())
        self._tokens.forget()
        return True

    def take_events(self, resync: bool = False) -> list[Event]:
        """The cache's events since the last call; `[]` unless `cache` was made with `events`.

        In their token ids, contents stand as negative numbers that mean nothing elsewhere.
        """
        return self._cache.take_events(resync)

    def make_prefix_cache_stats(self) -> PrefixCacheStats:
        """What was counted since the last call."""
        stats, self._stats = self._stats, PrefixCacheStats()
        return stats

    def check_integrity(self) -> None:
        """Recount every block, and the tree; for tests and idle times. Raises `IntegrityError`."""
        self._cache.check_integrity()
        owned = list(self._free)
        for table in self._tables.values():
            owned += table.blocks[table.shared :]
        for segment in self._cache.iter_values():
            owned += segment
        if sorted(owned) != list(range(NULL_BLOCK + 1, self._num_blocks)):
            raise IntegrityError(
                f"block manager: {len(owned)} blocks have an owner, {len(set(owned))} of them "
                f"different, where blocks 1 to {self._num_blocks - 1} should have one each"
            )

    def _reserve(
        self,
        request: BlockRequest,
        hit: int,
        prefix: CachedPrefix | None,
        end: int,
        to_fit: int,
        reserved_blocks: int,
    ) -> KVCacheBlocks | None:
        """Blocks for the tokens [0, end), if those for [0, to_fit) would leave enough to others."""
        table = self._tables.get(request.request_id)
        held = hit // self._block_size if table is None else len(table.blocks)
        needed = self._blocks_of(to_fit) - held + reserved_blocks
        if needed > self.num_free_blocks:
            return None
        if table is None:
            table = self._admit(request, hit, prefix, needed)
            if table is None:
                return None
        new = self._take(self._blocks_of(end) - len(table.blocks))
        table.blocks += new
        return KVCacheBlocks(tuple(new))

    def _admit(
        self, request: BlockRequest, hit: int, prefix: CachedPrefix | None, needed: int
    ) -> _Table | None:
        """A table for a new request that begins with the cached blocks of `hit` tokens, locked.

        None if, with these locked, there is no room any more for `needed` blocks.
        """
        table = _Table(namespace_of(request))
        if hit and prefix is not None:
            table.tokens = prefix.key.tokens()
        if self._enable_caching:
            self._tokens.extend(table.tokens, request, request.num_tokens)
        if hit and prefix is not None:
            match = self._cache.match(prefix.key.head(hit))
            if match.length < hit:
                raise StaleMatch(
                    f"{hit} tokens were found for request {request.request_id!r} and "
                    f"{match.length} are left: call get_computed_blocks again"
                )
            table.lock = self._cache.lock(match)
            table.blocks = match.values()
            table.shared = len(table.blocks)
            # The blocks just locked may have been among those that counted as free.
            if needed > self.num_free_blocks:
                self._unlock(table)
                return None
        self._tables[request.request_id] = table
        self._stats.requests += 1
        self._stats.queries += request.num_tokens
        self._stats.hits += hit
        return table

    def _publish(self, request: BlockRequest, table: _Table, computed: int) -> None:
        """Put what is computed in full blocks into the tree, and take the tree's blocks for it."""
        full = min(computed, request.num_tokens) // self._block_size
        if full <= table.shared or not self._enable_caching:
            return
        if full > len(table.blocks):
            raise ValueError(
                f"request {request.request_id!r} has {computed} computed tokens and blocks for "
                f"{len(table.blocks) * self._block_size}: allocate_slots comes before the step"
            )
        tokens = full * self._block_size
        self._tokens.extend(table.tokens, request, tokens)
        key = Key(table.tokens, table.namespace).head(tokens)
        done = self._cache.insert(key, table.blocks[:full])
        lock = self._cache.lock(done)
        self._unlock(table)
        table.lock = lock
        # Of what was declined, the blocks below `shared` are the tree's own: it was shown them.
        duplicates = [
            table.blocks[at]
            for span in done.declined
            for at in range(
                max(span.start // self._block_size, table.shared), self._blocks_of(span.stop)
            )
        ]
        if duplicates:
            self._free += duplicates
            table.blocks[:full] = done.values()
            self._moved.add(request.request_id)
        table.shared = full

    def _unlock(self, table: _Table) -> None:
        if table.lock is not None:
            self._cache.unlock(table.lock)
            table.lock = None

    def _take(self, n: int) -> list[BlockId]:
        """`n` free blocks, evicting cached ones only if there are too few."""
        if n <= 0:
            return []
        if n > len(self._free):
            self._regain(self._cache.evict((n - len(self._free)) * self._block_size))
        taken = self._free[: -n - 1 : -1]
        del self._free[-n:]
        return taken

    def _regain(self, segments: Iterable[Any]) -> None:
        for segment in segments:
            self._free.extend(segment)

    def _table_of(self, request_id: str) -> _Table:
        table = self._tables.get(request_id)
        if table is None:
            raise ValueError(
                f"request {request_id!r} holds no blocks: allocate_slots gives it some"
            )
        return table

    def _blocks_of(self, tokens: int) -> int:
        """Blocks for so many tokens of a sequence, which never grows beyond the longest."""
        if self._max_model_len is not None:
            tokens = min(tokens, self._max_model_len)
        return -(-tokens // self._block_size)
