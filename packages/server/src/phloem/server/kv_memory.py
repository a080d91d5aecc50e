"""The KV of a real model as `phloem.server.tiers` wants it. Needs torch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from phloem.mem_pool.kv import KVPool
from phloem.mem_pool.kv_transfer import HostKVPool, KVTransfer
from phloem.model_runner.checkpoint_identity import checkpoint_identity


class PoolMemory:
    """A KV pool of a model; implements `KVMemory`.

    Args:
        pool: the KV of the device.
        folder: the model's.
        computation: what else the numbers depend on: dtype, form of the weights, kernels.
    """

    def __init__(self, pool: KVPool, folder: Path, computation: str) -> None:
        self._pool = pool
        self._folder = folder
        self._computation = computation
        self.token_bytes = pool.shape.bytes_per_token
        self.in_host_memory = pool.device.type == "cpu"
        self.layer_ready: Callable[[int], None] | None = None
        """What the model has to call before it uses a layer, if it has to."""

    @property
    def fingerprint(self) -> str:
        """The checkpoint, the form of its KV, and what else its numbers depend on."""
        checkpoint = checkpoint_identity(self._folder)
        return f"{checkpoint} {self._pool.fingerprint} {self._computation}"

    def transfer(self, num_host_slots: int) -> KVTransfer:
        """Copies to host memory, which is made."""
        beside = loads_beside(self._pool.device)
        host = HostKVPool(num_host_slots, self._pool)
        made = KVTransfer(self._pool, host, wait_for_loads=not beside)
        self.layer_ready = made.ready if beside else None
        return made


def loads_beside(device: torch.device) -> bool:
    """Whether KV is brought to a device while the model computes. A CPU has no time for both."""
    return device.type != "cpu"
