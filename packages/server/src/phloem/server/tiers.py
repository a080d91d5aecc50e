"""The tiers below the device that a user asked for, sized, checked against the machine and made."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import psutil

from phloem.mem_pool import (
    ArrayTransfer,
    DiskStore,
    HostTier,
    PageAllocator,
    StoredBlocks,
    TieredTree,
    Transfer,
)
from phloem.mem_pool.host_tier import BUDGET_TOKENS
from phloem.server.config import ServerArgs

GIB = 1 << 30
_DEFAULT_HOST_BYTES = 4 * GIB
"""At most so much host memory is taken for what comes from the disk, if nobody says how much."""
_DEFAULT_DISK_GB = 10.0


class KVMemory(Protocol):
    """The KV of the device, for which tiers are made."""

    @property
    def token_bytes(self) -> int:
        """Bytes of one token."""
        ...

    @property
    def in_host_memory(self) -> bool:
        """Whether it takes the memory that a host tier would take."""
        ...

    @property
    def fingerprint(self) -> str:
        """Names the model and the form of its KV, equal in every process."""
        ...

    def transfer(self, num_host_slots: int) -> Transfer:
        """Copies between it and as many slots on the host, which are made."""
        ...


class ArrayMemory:
    """KV in an array `[num_slots, ...]`, of a model that is scripted; implements `KVMemory`."""

    in_host_memory = True
    fingerprint = "scripted"

    def __init__(self, array: npt.NDArray[Any]) -> None:
        self._array = array
        self.token_bytes = int(array[:1].nbytes)

    def transfer(self, num_host_slots: int) -> Transfer:
        """Copies to an array on the host."""
        host = np.empty((num_host_slots, *self._array.shape[1:]), self._array.dtype)
        return ArrayTransfer(self._array, host)


def wants_tiers(args: ServerArgs) -> bool:
    """Whether anything below the device was asked for."""
    return args.host_cache_gb is not None or args.disk_cache is not None


def make_tiers(args: ServerArgs, tree: TieredTree, capacity: int, memory: KVMemory) -> HostTier:
    """The host tier over a tree and, if asked for, the disk below it.

    Args:
        args: what was asked for.
        tree: with a host tier.
        capacity: tokens that the device holds.
        memory: the device's.

    Raises:
        ValueError: it does not fit into this machine.
    """
    tokens = _host_tokens(args, capacity, memory)
    slots = PageAllocator(tokens, args.page_size)
    transfer = memory.transfer(slots.num_slots)
    stored = None
    if args.disk_cache is not None:
        gb = _DEFAULT_DISK_GB if args.disk_cache_gb is None else args.disk_cache_gb
        store = DiskStore(args.disk_cache, int(gb * GIB), idle_ttl=args.cache_idle_ttl)
        stored = StoredBlocks(store, transfer, memory.fingerprint, args.page_size)
    # What is on its way cannot be evicted: never more of it than a part of the device.
    budget = max(min(BUDGET_TOKENS, capacity // 4), args.page_size)
    return HostTier(tree, slots, transfer, stored, budget=budget)


def _host_tokens(args: ServerArgs, capacity: int, memory: KVMemory) -> int:
    """Tokens that the host tier holds: what was asked for, or enough for what the device holds."""
    free = int(psutil.virtual_memory().available)
    if memory.in_host_memory:
        free -= capacity * memory.token_bytes
    free = max(free, 0)
    wanted = args.host_cache_gb
    if wanted is None:
        size = min(capacity * memory.token_bytes, _DEFAULT_HOST_BYTES, free // 2)
    else:
        size = int(wanted * GIB)
    if size > free:
        raise ValueError(
            f"host_cache_gb {wanted:g} is more than the {free / GIB:.2f} GiB of host memory that "
            "are free beside the model and its KV cache: give less, or a smaller max_total_tokens"
        )
    page_bytes = memory.token_bytes * args.page_size
    if size < 2 * page_bytes:  # the padding page takes one
        raise ValueError(
            f"{size / GIB:g} GiB of host memory hold no page of {args.page_size} tokens at "
            f"{memory.token_bytes} bytes each: raise host_cache_gb, or free memory"
        )
    return (size // page_bytes - 1) * args.page_size
