"""What a caller of `block_manager` must hold to, and the words if it did not."""

from __future__ import annotations

from ..tree import RadixCache
from .blocks import NULL_BLOCK, BlockIds, BlockRequest, CachedPrefix


def check_pool(num_blocks: int, block_size: int, cache: RadixCache) -> None:
    """A pool that can hand something out, and a cache made for its blocks."""
    if num_blocks < 2:
        raise ValueError(
            f"num_blocks {num_blocks} is less than 2: block {NULL_BLOCK} is never handed out, "
            "so give at least one more"
        )
    if cache.page_size != block_size or cache.sizes.total:
        raise ValueError(
            f"the cache has pages of {cache.page_size} tokens and holds {cache.sizes.total}: "
            f"give an empty one with page_size={block_size}, the block_size"
        )
    # Asked for here: with other values the first `free` would fail, after blocks were handed out.
    adapter = cache.value_adapter
    if not isinstance(adapter, BlockIds) or adapter.block_size != block_size:
        raise ValueError(
            f"the cache's values are not one id for each block of {block_size} tokens: make it "
            f"with values=BlockIds({block_size})"
        )


def check_counts(
    num_new_tokens: int,
    num_lookahead_tokens: int,
    num_external_computed_tokens: int,
    reserved_blocks: int,
) -> None:
    """What is asked of `allocate_slots` is 0 or more."""
    counts = {
        "num_new_tokens": num_new_tokens,
        "num_lookahead_tokens": num_lookahead_tokens,
        "num_external_computed_tokens": num_external_computed_tokens,
        "reserved_blocks": reserved_blocks,
    }
    for name, given in counts.items():
        if given < 0:
            raise ValueError(f"{name} {given} is negative: give a count, 0 or more")


def check_hit(
    request: BlockRequest, is_new: bool, hit: int, prefix: CachedPrefix | None, block_size: int
) -> None:
    """What `allocate_slots` is given as cached is what a look-up found, for a new request."""
    if not hit:
        return
    if not is_new or request.num_computed_tokens:
        raise ValueError(
            f"request {request.request_id!r} has {request.num_computed_tokens} computed tokens "
            f"and is given {hit} cached ones: only a new request can be given any"
        )
    if prefix is None or not 0 <= hit <= prefix.num_tokens or hit % block_size:
        found = "none" if prefix is None else prefix.num_tokens
        raise ValueError(
            f"num_new_computed_tokens {hit} does not go with new_computed_blocks of {found}: "
            f"pass on what get_computed_blocks gave, or full blocks ({block_size}) of it"
        )
