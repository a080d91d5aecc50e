"""Why a sequence found no more of itself cached than it did.

Owns the reasons and their names. It looks at the sequence's own namespace and changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from phloem.mem_pool.lease import Lease
from phloem.mem_pool.manager import CacheManager
from phloem.mem_pool.tree import TokenIds

_OF_THE_TREE = (
    ("evicted", "evicted"),
    ("differs", "diverged"),
    ("never seen", "first_seen"),
    # The tree says that it has more than the lease got: tiers below had no room to bring it to.
    ("hit", "not_loaded"),
)
"""The tree's reasons, and what they are called here. Compared and not hashed: they may be enums."""


@dataclass(frozen=True, slots=True)
class CacheMiss:
    """Where the cached part of a sequence ends, and why."""

    reason: str
    """"first_seen": nothing in its namespace goes on from there; "diverged": what is cached has
    another token at `at`; "evicted": it was cached until lately; "not_loaded": it is below the
    device, which had no room; "recomputed": the prompt's logprobs or hidden states are wanted;
    "short": only whole pages are cached, and all but the last token; "cache_off": nothing is."""
    at: int
    """Position of the first token that could not be shared."""


def cache_miss(
    manager: CacheManager, lease: Lease, tokens: TokenIds, keep_from: int | None = None
) -> CacheMiss | None:
    """Why a lease that was opened with `tokens` and `keep_from` reuses no more of them; None: it
    reuses all that ever can be.

    O(tokens), plus O(children) of the tree's node where the cached part ends.
    """
    page, cached = manager.page_size, lease.protected
    reusable = max(len(tokens) - 1, 0) & -page
    if not manager.shares_prefixes:
        return CacheMiss("cache_off", 0)
    if not reusable:
        return CacheMiss("short", 0)
    if cached >= reusable:
        return None
    if keep_from is not None and cached >= (max(keep_from, 0) & -page):
        return CacheMiss("recomputed", cached)
    found = manager.tree.explain(manager.tree.key(tokens[:reusable], lease.namespace))
    name = next((name for reason, name in _OF_THE_TREE if reason == found.reason), "first_seen")
    return CacheMiss(name, cached if found.neighbour is None else found.neighbour[0])
