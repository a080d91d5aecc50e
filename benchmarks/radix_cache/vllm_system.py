"""vLLM's `BlockPool`, with the hashing and the lookup that its manager uses for full attention.

It has no tree: a key is the chain of hashes of its full blocks of 16, made by SHA-256, the default.
A block that nobody uses is either free or cached; the driver holds the free ones, so that `evict`
takes blocks from the pool's queue of cached ones and `insert` takes no time for what `evict` did.
"""

from __future__ import annotations

import logging
from importlib import import_module
from typing import Any

import torch

from benchmarks.radix_cache import placeholders
from benchmarks.radix_cache.workloads import Tokens

_CORE = "vllm.v1.core"
placeholders.install(
    real=(
        f"{_CORE}.block_pool",
        f"{_CORE}.kv_cache_utils",
        f"{_CORE}.single_type_kv_cache_manager",
        "vllm.v1.kv_cache_interface",
        "vllm.utils.hashing",
        "vllm.utils.math_utils",
    ),
    absent=("cbor2",),
    given={"vllm.logger": {"init_logger": logging.getLogger}},
)
_utils: Any = import_module(f"{_CORE}.kv_cache_utils")
_pool: Any = import_module(f"{_CORE}.block_pool")
_manager: Any = import_module(f"{_CORE}.single_type_kv_cache_manager").FullAttentionManager
_spec: Any = import_module("vllm.v1.kv_cache_interface").FullAttentionSpec
_sha256: Any = import_module("vllm.utils.hashing").sha256


class _Sequence:
    """The part of a vLLM request that hashing and caching read."""

    mm_features = lora_request = cache_salt = prompt_embeds = None

    def __init__(self, ids: list[int], block_hashes: list[bytes]) -> None:
        self.all_token_ids = ids
        self.num_tokens = len(ids)
        self.block_hashes = block_hashes


class Vllm:
    """A pool of `capacity` tokens in blocks of a page each."""

    def __init__(self, page_size: int, capacity: int) -> None:
        _utils.NONE_HASH = _utils.BlockHash(_sha256("benchmark"))
        blocks = capacity // page_size
        self._page_size = page_size
        self._capacity = blocks * page_size
        self._pool = _pool.BlockPool(blocks + 1, True, page_size)  # one is its null block
        self._hasher = _utils.get_request_block_hasher(page_size, _sha256)
        self._spec = _spec(
            block_size=page_size, num_kv_heads=8, head_size=128, dtype=torch.bfloat16
        )
        self._free: list[Any] = self._pool.get_new_blocks(blocks)

    def encode(self, tokens: Tokens) -> list[int]:
        """The list of ints that a request holds."""
        ids: list[int] = tokens.tolist()
        return ids

    def values(self, n: int) -> None:
        """Nothing: the blocks are the pool's."""

    def key(self, encoded: list[int], earlier: _Sequence | None = None) -> _Sequence:
        """Hashes the blocks that `earlier` had not."""
        sequence = _Sequence(encoded, list(earlier.block_hashes) if earlier else [])
        sequence.block_hashes.extend(self._hasher(sequence))
        return sequence

    def key_from_list(self, ids: list[int]) -> _Sequence:
        """`key`: vLLM has lists anyway."""
        return self.key(ids)

    def match(self, key: _Sequence) -> list[Any]:
        """The cached blocks from the start on."""
        blocks, _ = _manager.find_longest_cache_hit(
            block_hashes=key.block_hashes,
            max_length=key.num_tokens,
            kv_cache_group_ids=[0],
            block_pool=self._pool,
            kv_cache_spec=self._spec,
            drop_eagle_block=False,
            alignment_tokens=self._page_size,
        )
        found: list[Any] = blocks[0]
        return found

    def length(self, found: list[Any]) -> int:
        """Tokens in these blocks."""
        return len(found) * self._page_size

    def read(self, found: list[Any]) -> list[int]:
        """Block ids."""
        return [block.block_id for block in found]

    def lock(self, found: list[Any]) -> list[Any]:
        """Takes the blocks out of the queue."""
        self._pool.touch(found)
        return found

    def unlock(self, lock: list[Any]) -> None:
        """Puts them back, the last first."""
        self._pool.free_blocks(reversed(lock))

    def insert(self, key: _Sequence, values: None, found: list[Any]) -> None:
        """Registers free blocks under the hashes after `found`, and lets go of them."""
        need = len(key.block_hashes) - len(found)
        at = len(self._free) - need
        new, self._free[at:] = self._free[at:], []
        self._pool.cache_full_blocks(
            key, found + new, len(found), len(key.block_hashes), self._page_size, 0
        )
        self._pool.free_blocks(reversed(new))

    def evict(self, n: int) -> int:
        """Takes the least recently used blocks, which lose their hashes."""
        blocks: int = min(-(-n // self._page_size), self._pool.get_num_free_blocks())
        self._free.extend(self._pool.get_new_blocks(blocks))
        return blocks * self._page_size

    def used(self) -> int:
        """Tokens in blocks that are not free."""
        return self._capacity - len(self._free) * self._page_size
