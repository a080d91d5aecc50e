"""A prefix cache for LLM inference engines: a radix tree over token ids with opaque values.

The tree decides what is kept; the caller owns the memory that the values name. Start at
`RadixCache`.
"""

from .errors import CacheInUse, IntegrityError, LockReleased, StaleMatch
from .explain import Explanation, Neighbour, Reason
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
    TierSizes,
)
from .key import Key, Namespace, TokenId
from .node import Copy, Node
from .policy import (
    POLICY_NAMES,
    CostAware,
    EvictionPolicy,
    Fifo,
    Filo,
    Lfu,
    Lru,
    Mru,
    Priority,
    Rank,
    SegmentedLru,
)
from .render.outline import Outline, OutlineNode, OutlineSpace
from .tier import Tier
from .tree import RadixCache
from .values import SequenceValues, ValueAdapter

__all__ = [
    "POLICY_NAMES",
    "Backup",
    "CacheInUse",
    "Copy",
    "CostAware",
    "EvictionPolicy",
    "Explanation",
    "Fifo",
    "Filo",
    "Gone",
    "Handle",
    "Insertion",
    "IntegrityError",
    "Key",
    "Lfu",
    "Load",
    "Lock",
    "LockReleased",
    "Lru",
    "Match",
    "Mru",
    "Namespace",
    "Neighbour",
    "Node",
    "Outline",
    "OutlineNode",
    "OutlineSpace",
    "Priority",
    "RadixCache",
    "Rank",
    "Reason",
    "SegmentedLru",
    "SequenceValues",
    "Sizes",
    "StaleMatch",
    "Stats",
    "Tier",
    "TierSizes",
    "TokenId",
    "ValueAdapter",
]
