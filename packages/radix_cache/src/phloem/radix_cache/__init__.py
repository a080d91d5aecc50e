"""A prefix cache for LLM inference engines: a radix tree over token ids with opaque values.

The tree decides what is kept; the caller owns the memory that the values name. Start at
`RadixCache`.
"""

from .errors import CacheInUse, IntegrityError, LockReleased, StaleMatch
from .handles import Handle, Insertion, Lock, Match, Sizes, Stats
from .key import Key, Namespace, TokenId
from .node import Node
from .policy import EvictionPolicy, Lru, Rank
from .tree import RadixCache
from .values import SequenceValues, ValueAdapter

__all__ = [
    "CacheInUse",
    "EvictionPolicy",
    "Handle",
    "Insertion",
    "IntegrityError",
    "Key",
    "Lock",
    "LockReleased",
    "Lru",
    "Match",
    "Namespace",
    "Node",
    "RadixCache",
    "Rank",
    "SequenceValues",
    "Sizes",
    "StaleMatch",
    "Stats",
    "TokenId",
    "ValueAdapter",
]
