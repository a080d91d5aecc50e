"""What a cache tells others: events about whole blocks of tokens, and the hashes that name blocks.

Owns the event types and the formula of the hashes, which anybody can compute without this package.
It records nothing (see `event_log`) and encodes nothing (see `events_wire`). Imported only where
events are used.

A *block* is `block_size` tokens that start at a multiple of `block_size`, together with all tokens
before them and the namespace. Its hash is one link of a SHA-256 chain:

    hash[k] = SHA256(hash[k - 1] + tokens)        for the blocks k = 1, 2, ...
    hash[0] = SHA256(b"phloem.radix_cache.events.v1:" + encoding of the namespace)
    tokens  = the block's token ids, each as 4 bytes, two's complement, little-endian

A namespace is encoded part by part, so that no two have the same encoding (numbers in decimal,
except the hexadecimal digits of an int):

    None  N            str    S <bytes of its UTF-8> : <UTF-8>       int  I <hex digits> ;
    tuple T <parts> :  bytes  B <length> : <bytes>                   (-255 is I-ff;)
    followed by its parts

So `("a", None)` is `T2:S1:aN`. Nothing here depends on the process, the platform or PYTHONHASHSEED.
"""

from __future__ import annotations

import sys
from array import array
from dataclasses import dataclass
from hashlib import sha256
from typing import Final, TypeAlias

from .key import TOKEN_BYTES, Key, Namespace, TokenId
from .tier import Tier

BlockHash: TypeAlias = bytes
"""32 bytes."""

MIN_BLOCK_SIZE: Final = 16
_SEED_TAG: Final = b"phloem.radix_cache.events.v1:"


@dataclass(frozen=True, slots=True)
class EventOptions:
    """How a cache reports.

    Args:
        block_size: tokens per event block, at least 16; a multiple of the cache's page_size.
        capacity: how much is kept between two calls of `take_events`: the number of events and of
            the blocks named in them, together. When it is exceeded, see `EventsLost`.
    """

    block_size: int
    capacity: int = 65_536

    def __post_init__(self) -> None:
        if self.block_size < MIN_BLOCK_SIZE:
            raise ValueError(
                f"event block_size {self.block_size} is less than {MIN_BLOCK_SIZE}: each block is "
                "hashed and sent, so give more tokens to a block"
            )
        if self.capacity < 1:
            raise ValueError(f"event capacity {self.capacity} is less than 1: leave room for one")


@dataclass(frozen=True, slots=True)
class BlockStored:
    """Blocks that a tier holds now: a run, each the parent of the next.

    `parent_hash` is that of the block before the first, which the tier holds already; None if the
    run starts with a path's first block. `token_ids` are those of all blocks, in order.
    """

    block_hashes: tuple[BlockHash, ...]
    parent_hash: BlockHash | None
    token_ids: tuple[TokenId, ...]
    block_size: int
    namespace: Namespace
    tier: Tier


@dataclass(frozen=True, slots=True)
class BlockRemoved:
    """Blocks that a tier does not hold any more; a block comes before its parent."""

    block_hashes: tuple[BlockHash, ...]
    tier: Tier
    namespace: Namespace


@dataclass(frozen=True, slots=True)
class AllCleared:
    """No tier holds anything now."""


@dataclass(frozen=True, slots=True)
class PrefixReused:
    """A match found `tokens` tokens on the device: `blocks` whole blocks down to `block_hash`."""

    block_hash: BlockHash
    blocks: int
    tokens: int
    namespace: Namespace


@dataclass(frozen=True, slots=True)
class EventsLost:
    """The buffer was full and `count` records were dropped: forget all blocks.

    The `BlockStored` events that follow it, in the same list, name all that is stored now.
    """

    count: int


Event: TypeAlias = BlockStored | BlockRemoved | AllCleared | PrefixReused | EventsLost


def block_hashes(key: Key, block_size: int) -> list[BlockHash]:
    """The hashes of the whole blocks of `key`."""
    return chain(namespace_seed(key.namespace), key.data, block_size)


def namespace_seed(namespace: Namespace) -> BlockHash:
    """The link before the first block's; the name of no block."""
    return sha256(_SEED_TAG + _encode(namespace)).digest()


def chain(previous: BlockHash, data: bytes, block_size: int) -> list[BlockHash]:
    """The hashes of the whole blocks of `data` (native int32 bytes) after the link `previous`."""
    data = _little_endian(data)
    size = block_size * TOKEN_BYTES
    hashes: list[BlockHash] = []
    for at in range(0, len(data) - size + 1, size):
        previous = sha256(previous + data[at : at + size]).digest()
        hashes.append(previous)
    return hashes


def _little_endian(data: bytes, byteorder: str = sys.byteorder) -> bytes:
    """Int32 bytes in `byteorder`, turned into little-endian ones."""
    if byteorder == "little":
        return data
    tokens = array("i", data)
    tokens.byteswap()
    return tokens.tobytes()


def _encode(part: object) -> bytes:
    if part is None:
        return b"N"
    if isinstance(part, str):
        text = part.encode("utf-8", "surrogatepass")
        return b"S%d:%b" % (len(text), text)
    if isinstance(part, bytes):
        return b"B%d:%b" % (len(part), part)
    if isinstance(part, int):
        return b"I%x;" % part
    assert isinstance(part, tuple), f"a key refuses a namespace part like {part!r}"
    return b"T%d:%b" % (len(part), b"".join(map(_encode, part)))
