"""KV cache memory for LLM inference: rows, slots, pages, and the leases that own them.

Start at `CacheManager`. Everything here is numpy on the host; only `phloem.mem_pool.kv` needs
torch.
"""

from phloem.mem_pool.array_transfer import ArrayTransfer
from phloem.mem_pool.cache_miss import CacheMiss, cache_miss
from phloem.mem_pool.disk_store import DiskStats, DiskStore
from phloem.mem_pool.errors import IntegrityError, OwnershipError
from phloem.mem_pool.host_tier import HostTier
from phloem.mem_pool.lease import Brought, Lease, Retention
from phloem.mem_pool.manager import CacheManager
from phloem.mem_pool.report import HostReport, Report
from phloem.mem_pool.rows import RowTable
from phloem.mem_pool.sizing import capacity_tokens
from phloem.mem_pool.slots import PageAllocator, SlotAllocator, Slots, TokenAllocator
from phloem.mem_pool.stored_blocks import StoredBlocks
from phloem.mem_pool.tier_ports import Store, TieredTree, Transfer
from phloem.mem_pool.tiers import DeviceOnly, Tiers, TierStats
from phloem.mem_pool.tree import (
    InsertResult,
    Namespace,
    NoPrefixTree,
    PrefixTree,
    TokenIds,
    TreeHandle,
    TreeSizes,
)

__all__ = [
    "ArrayTransfer",
    "Brought",
    "CacheManager",
    "CacheMiss",
    "DeviceOnly",
    "DiskStats",
    "DiskStore",
    "HostReport",
    "HostTier",
    "InsertResult",
    "IntegrityError",
    "Lease",
    "Namespace",
    "NoPrefixTree",
    "OwnershipError",
    "PageAllocator",
    "PrefixTree",
    "Report",
    "Retention",
    "RowTable",
    "SlotAllocator",
    "Slots",
    "Store",
    "StoredBlocks",
    "TierStats",
    "TieredTree",
    "Tiers",
    "TokenAllocator",
    "TokenIds",
    "Transfer",
    "TreeHandle",
    "TreeSizes",
    "cache_miss",
    "capacity_tokens",
]
