"""What of a key is in a store: blocks of its KV, saved from the host's slots and read back.

Owns the names and the form of what is stored, and the store's health. The slots are the
`HostTier`'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from phloem.mem_pool.blocks import BLOCK_TOKENS, TOKEN_BYTES, Tokens, chain, tail_name
from phloem.mem_pool.health import Health
from phloem.mem_pool.slots import Slots
from phloem.mem_pool.tier_ports import Bytes, Store, TieredKey, Transfer


class StoredBlocks:
    """A `Store` of blocks, asked by keys. Whatever it raises is a miss.

    Where a sequence ends inside a block, that end is stored too: a tail, with its tokens, since who
    asks for it may share only its beginning. Of tails that begin with the same page, the last one
    is kept.

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
        self._page_size = page_size
        self._store = store
        self._transfer = transfer
        self._fingerprint = fingerprint

    def counts(self) -> dict[str, int]:
        """What the store counts, in blocks, and how often it failed; names begin with `disk_`."""
        counts = {f"disk_{name}": count for name, count in self._store.counts().items()}
        return counts | {"disk_failures": self.health.failures + self.health.mistakes}

    def save(self, key: TieredKey, start: int, slots: Slots) -> None:
        """Have stored what ends in the tokens from `start` on.

        Args:
            key: the tokens, whole pages of them.
            start: tokens that were looked after before.
            slots: int32 [len(key)], the host's slots of the key.
        """
        block = self.block
        try:
            tokens, links = self._links(key)
            for i in range(start // block, len(links) - 1):
                if not self._store.find(links[i + 1 : i + 2]):
                    put = partial(self._store.put, links[i + 1])
                    self._transfer.read(slots[i * block : (i + 1) * block], put)
            tail = tokens[(len(links) - 1) * block :]
            if len(tail):
                put = partial(self._put_tail, self._tail_name(links[-1], tail), tail)
                self._transfer.read(slots[-len(tail) :], put)
        except Exception as error:  # whatever a store raises, only what it has may be missing
            self.health.failed(error)

    def find(self, key: TieredKey, held: int) -> int:
        """How many tokens of a key could be held at most, of which `held` are now."""
        first = held // self.block
        try:
            tokens, links = self._links(key)
            whole = first + self._store.find(links[first + 1 :])
            end = whole * self.block
            rest = tokens[end:]
            if len(rest) and self._store.find([self._tail_name(links[whole], rest)]):
                end = min(end + self.block, len(tokens))
        except Exception as error:  # as above
            self.health.failed(error)
            return held
        return max(end, held)

    def read(self, key: TieredKey, held: int, slots: Slots) -> int:
        """Fill slots with what is stored.

        Args:
            key: the tokens.
            held: tokens whose slots are filled.
            slots: int32 [n], the host's slots of the key's first n tokens.

        Returns:
            How many tokens have filled slots now, in whole pages.
        """
        block, reached = self.block, held
        try:
            tokens, links = self._links(key)
            whole = held // block
            while (whole + 1) * block <= len(slots):
                data = self._block(links[whole + 1])
                if data is None:
                    break
                reached = self._fill(slots[: (whole + 1) * block], reached, data)
                whole += 1
            data = self._tail(links[whole], tokens[whole * block : len(slots)])
            reached = self._fill(slots[: whole * block + self._count(data)], reached, data)
        except Exception as error:  # as above
            self.health.failed(error)
        else:
            self.health.succeeded()
        return reached

    def close(self) -> None:
        """End the store."""
        self._store.close()

    def _links(self, key: TieredKey) -> tuple[Tokens, list[bytes]]:
        tokens = np.asarray(key.tokens(), np.int32)
        return tokens, chain(self._fingerprint, key.namespace, tokens, self.block)

    def _tail_name(self, link: bytes, tail: Tokens) -> bytes:
        return tail_name(link, tail[: self._page_size])

    def _put_tail(self, name: bytes, tokens: Tokens, data: Bytes) -> None:
        parts: Sequence[Bytes] = (tokens.astype("<i4").tobytes(), data)
        self._store.put(name, b"".join(parts), replace=True)

    def _block(self, name: bytes) -> Bytes | None:
        data = self._store.get(name)
        return None if data is None or self._count(data) != self.block else data

    def _tail(self, link: bytes, tokens: Tokens) -> Bytes:
        """The records of the whole pages that a tail has in common with `tokens`."""
        data = self._store.get(self._tail_name(link, tokens)) if len(tokens) else None
        width = self._transfer.bytes_per_token
        if data is None or len(data) % (TOKEN_BYTES + width):
            return b""
        count = len(data) // (TOKEN_BYTES + width)
        own = np.frombuffer(data, "<i4", count)
        length = min(count, len(tokens))
        other = np.flatnonzero(own[:length] != tokens[:length])
        common = int(other[0]) if len(other) else length
        records = memoryview(data)[count * TOKEN_BYTES :]
        return records[: common // self._page_size * self._page_size * width]

    def _count(self, data: Bytes) -> int:
        """Tokens of some records; not whole, hence not right, is 0."""
        count, rest = divmod(len(data), self._transfer.bytes_per_token)
        return 0 if rest else count

    def _fill(self, slots: Slots, reached: int, data: Bytes) -> int:
        """Fill `slots` from `reached` on with the last records of `data`, which end with them."""
        missing = len(slots) - reached
        if missing <= 0:
            return reached
        width = self._transfer.bytes_per_token
        self._transfer.write(slots[reached:], memoryview(data)[len(data) - missing * width :])
        return len(slots)
