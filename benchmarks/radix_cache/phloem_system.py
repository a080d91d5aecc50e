"""Ours: keys from int32 ids, values as int32 arrays or, for a second column, torch tensors."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.radix_cache.workloads import Tokens
from phloem.radix_cache import Insertion, Key, Lock, Match, RadixCache


class Phloem:
    """The tree with numpy values."""

    def __init__(self, page_size: int, capacity: int) -> None:
        self._cache = RadixCache(page_size=page_size)
        self._slots: Any = np.arange(1 << 16, dtype=np.int32)

    def encode(self, tokens: Tokens) -> Tokens:
        """An int32 array, as model inputs are."""
        return tokens

    def values(self, n: int) -> Any:
        """A view, which the tree copies."""
        return self._slots[:n]

    def key(self, encoded: Tokens, earlier: Key | None = None) -> Key:
        """Packs anew."""
        return Key(encoded)  # type: ignore[arg-type]  # an int32 array is a sequence of ints

    def key_from_list(self, ids: list[int]) -> Key:
        """Packs by way of `array`."""
        return Key(ids)

    def match(self, key: Key) -> Match:
        """`RadixCache.match`."""
        return self._cache.match(key)

    def length(self, found: Match) -> int:
        """Tokens."""
        return found.length

    def read(self, found: Match) -> Any:
        """Joined values."""
        return found.values()

    def lock(self, found: Match) -> Lock:
        """A receipt."""
        return self._cache.lock(found)

    def unlock(self, lock: Lock) -> None:
        """Takes the receipt."""
        self._cache.unlock(lock)

    def insert(self, key: Key, values: Any, found: Match) -> Insertion:
        """`RadixCache.insert`."""
        return self._cache.insert(key, values)

    def evict(self, n: int) -> int:
        """Walks what is returned, as the owner of the slots does to free them."""
        return sum(map(len, self._cache.evict(n)))

    def used(self) -> int:
        """Evictable and protected."""
        return self._cache.sizes.total


class PhloemTorch(Phloem):
    """The tree with int64 tensors, which SGLang's trees require."""

    def __init__(self, page_size: int, capacity: int) -> None:
        import torch

        super().__init__(page_size, capacity)
        torch.set_num_threads(1)
        self._slots = torch.arange(1 << 16, dtype=torch.int64)
