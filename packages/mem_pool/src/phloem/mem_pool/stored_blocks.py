"""What of a key is in a store: whole blocks of its KV, saved from the host's slots and read back.

Owns the names of the blocks and the store's health. The slots are the `HostTier`'s.
"""

from __future__ import annotations

from functools import partial

from phloem.mem_pool.blocks import BLOCK_TOKENS, block_names
from phloem.mem_pool.health import Health
from phloem.mem_pool.slots import Slots
from phloem.mem_pool.tier_ports import Store, TieredKey, Transfer


class StoredBlocks:
    """A `Store` of blocks, asked by keys. Whatever it raises is a miss.

    Args:
        store: keeps the blocks.
        transfer: reads and fills host slots.
        fingerprint: names the model and the form of its KV, equal in every process.
        page_size: tokens per page; a block is a multiple.
    """

    def __init__(self, store: Store, transfer: Transfer, fingerprint: str, page_size: int) -> None:
        if not fingerprint:
            raise ValueError(
                "a store without a fingerprint would hand the KV of one model to another: give one"
            )
        self.block = max(BLOCK_TOKENS, page_size)
        self.health = Health("the store of the prefix cache")
        self._store = store
        self._transfer = transfer
        self._fingerprint = fingerprint

    def save(self, key: TieredKey, start: int, slots: Slots) -> None:
        """Have the blocks stored that end in the tokens from `start` on.

        Args:
            key: the tokens.
            start: tokens that were looked after before.
            slots: the host's slots of the key, from its first token on.
        """
        block = self.block
        try:
            names = self._names(key)
            for i in range(start // block, min(len(names), len(slots) // block)):
                if not self._store.find(names[i : i + 1]):
                    self._transfer.read(
                        slots[i * block : (i + 1) * block], partial(self._store.put, names[i])
                    )
        except Exception as error:  # whatever a store raises, only what it has may be missing
            self.health.failed(error)

    def find(self, key: TieredKey, held: int) -> int:
        """How many tokens of a key could be held, of which `held` are now."""
        first = held // self.block
        try:
            found = self._store.find(self._names(key)[first:])
        except Exception as error:  # as above
            self.health.failed(error)
            return held
        return max((first + found) * self.block, held)

    def read(self, key: TieredKey, held: int, slots: Slots) -> int:
        """Fill slots with blocks.

        Args:
            key: the tokens.
            held: tokens whose slots are filled.
            slots: the host's slots of the key, up to the end of a block.

        Returns:
            How many tokens have filled slots now.
        """
        block, width = self.block, self._transfer.bytes_per_token
        reached = held
        try:
            names = self._names(key)
            for i in range(held // block, len(slots) // block):
                data = self._store.get(names[i])
                if data is None or len(data) != block * width:
                    break
                rest = memoryview(data)[(reached - i * block) * width :]
                self._transfer.write(slots[reached : (i + 1) * block], rest)
                reached = (i + 1) * block
        except Exception as error:  # as above
            self.health.failed(error)
        else:
            self.health.succeeded()
        return reached

    def close(self) -> None:
        """End the store."""
        self._store.close()

    def _names(self, key: TieredKey) -> list[bytes]:
        return block_names(self._fingerprint, key.namespace, key.tokens(), self.block)
