"""Events in the shapes that consumers of vLLM's and SGLang's KV cache events read.

Owns field names, order, types and the width of hashes, as of vLLM 0.32 and SGLang 0.5.23: a batch
is a list, an event a map with its class name under `type`, optional fields left out while unset.
Everything is plain (dict, list, str, int, bytes, None), for msgpack or JSON; it encodes and sends
nothing. The hash values are this package's own; consumers compare them, they do not compute them.

`PrefixReused` has no counterpart there and is left out. `EventsLost` becomes `AllBlocksCleared`,
which the blocks that are stored now follow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from .events import AllCleared, BlockHash, BlockRemoved, BlockStored, Event, EventsLost
from .key import Namespace
from .tier import Tier

Message: TypeAlias = "dict[str, Any]"
Batch: TypeAlias = "list[Any]"

_VLLM_MEDIUM: Final = {Tier.DEVICE: "GPU", Tier.HOST: "CPU"}
_SGLANG_MEDIUM: Final = {Tier.DEVICE: "GPU", Tier.HOST: "CPU_PINNED"}
_CLEARED: Final = "AllBlocksCleared"


class Names(NamedTuple):
    """What a consumer is told about a namespace; the hashes are told apart without it."""

    lora_id: int | None = None
    lora_name: str | None = None
    cache_salt: str | None = None


NamesOf: TypeAlias = Callable[[Namespace], Names]


def nameless(namespace: Namespace) -> Names:
    """Tells nothing about a namespace."""
    return Names()


def vllm_batch(
    events: Iterable[Event],
    timestamp: float,
    rank: int | None = None,
    *,
    names: NamesOf = nameless,
    hashes: Literal["int", "bytes"] = "int",
) -> Batch:
    """A `KVEventBatch` of vLLM: `[timestamp, events, data-parallel rank]`.

    Args:
        events: as `take_events` gave them.
        timestamp: seconds since the epoch.
        rank: of the data-parallel replica.
        names: what to tell about a namespace.
        hashes: "int" for the low 64 bits as an unsigned number, vLLM's default; "bytes" for all 32
            bytes (which JSON cannot carry).
    """
    width = _low_bits if hashes == "int" else bytes
    messages = [_vllm_message(event, names, width) for event in events]
    return [timestamp, [each for each in messages if each is not None], rank]


def sglang_batch(
    events: Iterable[Event],
    timestamp: float,
    rank: int | None = None,
    *,
    names: NamesOf = nameless,
) -> Batch:
    """A `KVEventBatch` of SGLang: `[timestamp, events, attention data-parallel rank]`.

    Hashes are the high 64 bits as a signed number. Arguments as for `vllm_batch`.
    """
    messages = [_sglang_message(event, names) for event in events]
    return [timestamp, [each for each in messages if each is not None], rank]


def _vllm_message(
    event: Event, names: NamesOf, width: Callable[[BlockHash], int | bytes]
) -> Message | None:
    if isinstance(event, BlockStored):
        named = names(event.namespace)
        message: Message = {
            "type": "BlockStored",
            "block_hashes": [width(each) for each in event.block_hashes],
            "parent_block_hash": None if event.parent_hash is None else width(event.parent_hash),
            "token_ids": list(event.token_ids),
            "block_size": event.block_size,
            "lora_id": named.lora_id,
            "medium": _VLLM_MEDIUM[event.tier],
            "lora_name": named.lora_name,
        }
        extra_keys = _extra_keys(event, named)
        if any(extra_keys):
            message["extra_keys"] = extra_keys
        message["group_idx"] = 0
        return message
    if isinstance(event, BlockRemoved):
        return {
            "type": "BlockRemoved",
            "block_hashes": [width(each) for each in event.block_hashes],
            "medium": _VLLM_MEDIUM[event.tier],
            "group_idx": 0,
        }
    return {"type": _CLEARED} if isinstance(event, AllCleared | EventsLost) else None


def _extra_keys(event: BlockStored, named: Names) -> list[list[str] | None]:
    """For each block the adapter's name, and for a path's first block also the salt."""
    adapter = [] if named.lora_name is None else [named.lora_name]
    keys: list[list[str] | None] = [adapter or None for _ in event.block_hashes]
    if event.parent_hash is None and named.cache_salt:
        keys[0] = [*adapter, named.cache_salt]
    return keys


def _sglang_message(event: Event, names: NamesOf) -> Message | None:
    if isinstance(event, BlockStored):
        named = names(event.namespace)
        parent = event.parent_hash
        message: Message = {
            "type": "BlockStored",
            "block_hashes": [_high_bits(each) for each in event.block_hashes],
            "parent_block_hash": None if parent is None else _high_bits(parent),
            "token_ids": list(event.token_ids),
            "block_size": event.block_size,
            "lora_id": named.lora_id,
            "medium": _SGLANG_MEDIUM[event.tier],
        }
        optional = {"cache_salt": named.cache_salt, "lora_name": named.lora_name}
        return message | {name: text for name, text in optional.items() if text is not None}
    if isinstance(event, BlockRemoved):
        return {
            "type": "BlockRemoved",
            "block_hashes": [_high_bits(each) for each in event.block_hashes],
            "medium": _SGLANG_MEDIUM[event.tier],
        }
    return {"type": _CLEARED} if isinstance(event, AllCleared | EventsLost) else None


def _low_bits(block_hash: BlockHash) -> int:
    return int.from_bytes(block_hash[-8:], "big")


def _high_bits(block_hash: BlockHash) -> int:
    return int.from_bytes(block_hash[:8], "big", signed=True)
