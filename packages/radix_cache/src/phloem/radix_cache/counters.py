"""What a cache counts since it was made."""

from __future__ import annotations

from .handles import Stats
from .host import HostTier
from .structure import Structure
from .tier import Tier


class Counters:
    """Look-ups, and tokens by what became of them. The writing thread counts, any may read."""

    __slots__ = (
        "declined_tokens",
        "evicted_tokens",
        "hit_tokens",
        "host_hit_tokens",
        "inserted_tokens",
        "lookup_tokens",
        "lookups",
    )

    def __init__(self) -> None:
        self.lookups = self.lookup_tokens = self.hit_tokens = self.host_hit_tokens = 0
        self.inserted_tokens = self.declined_tokens = 0
        self.evicted_tokens = [0, 0]
        """By tier."""

    def stats(self, tree: Structure, host: HostTier | None) -> Stats:
        """All counts, with those of now."""
        # Against the order of counting, so that beside a match no hit is seen without its lookup.
        host_hits, hits = self.host_hit_tokens, self.hit_tokens
        return Stats(
            lookups=self.lookups,
            lookup_tokens=self.lookup_tokens,
            hit_tokens=hits,
            host_hit_tokens=host_hits,
            inserted_tokens=self.inserted_tokens,
            declined_tokens=self.declined_tokens,
            evicted_tokens=self.evicted_tokens[Tier.DEVICE],
            host_evicted_tokens=self.evicted_tokens[Tier.HOST],
            backed_up_tokens=0 if host is None else host.backed_up_tokens,
            loaded_tokens=0 if host is None else host.loaded_tokens,
            nodes=tree.nodes,
            evictable_leaves=len(tree.device.leaves),
            namespaces=len(tree.roots),
        )
