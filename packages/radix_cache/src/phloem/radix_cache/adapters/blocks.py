"""What a block-table runtime and `block_manager` say to each other: requests, blocks, counts.

Owns the types and the value adapter for block ids; no rule of who holds what.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from ..key import Key, TokenId

BlockId = int
NULL_BLOCK: Final[BlockId] = 0
"""Never handed out, so that a table may be padded with it."""


class Content(NamedTuple):
    """Tokens [start, start + length) whose KV follows from `identity` rather than from their ids.

    An image, audio, given embeddings. Equal identities mean equal content of equal length.
    """

    start: int
    length: int
    identity: str


class BlockRequest(Protocol):
    """What the manager reads of a request. The names are those of vLLM's `Request` where it has
    them; the token ids of an id may only grow, until `free`."""

    @property
    def request_id(self) -> str:
        """Unique among the requests that hold blocks."""
        ...

    @property
    def all_token_ids(self) -> Sequence[TokenId]:
        """Prompt and output so far, ids from 0 up; under `contents` they may be anything."""
        ...

    @property
    def num_tokens(self) -> int:
        """`len(all_token_ids)`: tokens that are final; drafts are not among them."""
        ...

    @property
    def num_computed_tokens(self) -> int:
        """Leading tokens whose KV was written by steps before the one being scheduled.

        A runtime that schedules ahead may count steps in flight, if steps run in order.
        """
        ...

    @property
    def lora_name(self) -> str | None:
        """Adapter; requests of different adapters share nothing."""
        ...

    @property
    def cache_salt(self) -> str | None:
        """Requests of different salts share nothing."""
        ...

    @property
    def contents(self) -> Sequence[Content]:
        """What else the KV of some tokens depends on; requests share what comes before it."""
        ...


@dataclass(frozen=True, slots=True)
class KVCacheBlocks:
    """Blocks of one request, in the order of its tokens."""

    block_ids: tuple[BlockId, ...] = ()

    def get_block_ids(self) -> tuple[list[BlockId], ...]:
        """The ids by KV cache group; there is one group."""
        return (list(self.block_ids),)


@dataclass(frozen=True, slots=True)
class CachedPrefix:
    """What a look-up counted: nothing is held until `allocate_slots` is given it."""

    key: Key = field(repr=False)
    num_tokens: int


@dataclass(slots=True)
class PrefixCacheStats:
    """Requests let in, the tokens they had, and how many of those were cached."""

    requests: int = 0
    queries: int = 0
    hits: int = 0


class BlockIds:
    """The value adapter of this module: one id for each `block_size` tokens."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size

    @property
    def block_size(self) -> int:
        """Tokens per block."""
        return self._block_size

    def length(self, values: Sequence[BlockId]) -> int:
        """Tokens that these blocks hold."""
        return len(values) * self._block_size

    def cut(self, values: Sequence[BlockId], start: int, stop: int) -> list[BlockId]:
        """The blocks of the tokens [start, stop), which are whole blocks: the tree's pages are."""
        return list(values[start // self._block_size : stop // self._block_size])

    def join(self, parts: Sequence[Sequence[BlockId]]) -> list[BlockId]:
        """All blocks in order."""
        return [block for part in parts for block in part]
