"""The tree and the pool in an engine of your own: no scheduler, no model, no torch.

What is computed once is found again, and what is not needed any more makes room.
"""

from phloem.mem_pool import CacheManager, RowTable, TokenAllocator
from phloem.radix_cache import RadixCache


def compute(cache: CacheManager, tokens: list[int]) -> int:
    """Pretend to compute a prompt; returns how many of its tokens were cached."""
    lease = cache.open(tokens)
    if lease is None:
        raise RuntimeError("all rows are taken")
    cached = lease.protected
    if not cache.extend(lease, len(tokens) - cached):
        raise RuntimeError("the pool is full of what others use")
    # A model would write K and V of each new token to its slot here:
    slots = cache.rows.table[lease.row, cached : len(tokens)]
    cache.commit(lease, len(slots))
    cache.close(lease, tokens)
    return cached


def main() -> None:
    """Prompts that share a beginning, and one that does not, in a pool too small for both."""
    cache = CacheManager(RadixCache(), RowTable(max_rows=4, max_len=256), TokenAllocator(150))
    system = list(range(100))
    print("first: ", compute(cache, [*system, 1, 2, 3]), "of 103 tokens cached")
    print("second:", compute(cache, [*system, 4, 5, 6]), "of 103 tokens cached")
    print("other: ", compute(cache, list(range(1000, 1100))), "of 100 tokens cached")
    print("again: ", compute(cache, [*system, 1, 2, 3]), "of 103 tokens cached: the rest made room")
    print(cache.check())


if __name__ == "__main__":
    main()
