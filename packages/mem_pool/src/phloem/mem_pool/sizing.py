"""How many tokens a KV pool should hold: arithmetic over numbers that the caller has measured."""

from __future__ import annotations

GIB = 1 << 30
DEFAULT_FRACTION = 0.9
"""Share of the available memory that a pool may take when the caller names none."""
MAX_SLOTS = 1 << 31
"""Slot ids are int32."""


def capacity_tokens(
    bytes_per_token: int,
    available_bytes: int,
    *,
    mem_fraction_static: float | None = None,
    max_total_tokens: int | None = None,
    page_size: int = 1,
    cap_bytes: int | None = GIB,
) -> int:
    """Tokens for a KV pool: a multiple of the page, with room left for the padding page.

    The pool may take `mem_fraction_static` (else 0.9) of the available bytes. Within that it holds
    `max_total_tokens`, rounded down to pages, if given; else as many tokens as fit, of at most
    `cap_bytes` unless a fraction was asked for.

    Args:
        bytes_per_token: K and V of one token over all layers.
        available_bytes: memory that is free once the weights are loaded.
        mem_fraction_static: share of it for the pool, in (0, 1].
        max_total_tokens: tokens that the pool shall hold.
        page_size: tokens per page, a power of two.
        cap_bytes: what a pool may take when the caller asks for nothing; None: no such limit.

    Raises:
        ValueError: what was asked for does not fit, or is out of its range.
    """
    _check_ranges(bytes_per_token, page_size, mem_fraction_static, max_total_tokens)
    fraction = DEFAULT_FRACTION if mem_fraction_static is None else mem_fraction_static
    budget = int(max(available_bytes, 0) * fraction)
    if mem_fraction_static is None and max_total_tokens is None and cap_bytes is not None:
        budget = min(budget, cap_bytes)
    pages = min(budget // (bytes_per_token * page_size), MAX_SLOTS // page_size)
    fits = max(pages - 1, 0) * page_size
    room = f"{_mib(budget)} ({fraction:g} of {_mib(available_bytes)} available)"
    if max_total_tokens is not None and max_total_tokens - max_total_tokens % page_size > fits:
        need = (max_total_tokens + page_size) * bytes_per_token
        raise ValueError(
            f"max_total_tokens {max_total_tokens} needs {_mib(need)} of KV memory at "
            f"{bytes_per_token} bytes a token, but the pool may take {room}, enough for {fits} "
            "tokens: lower max_total_tokens, raise mem_fraction_static, free memory or keep KV in "
            "fewer bytes a token"
        )
    if not fits:
        raise ValueError(
            f"a page of {page_size} tokens at {bytes_per_token} bytes a token and the padding page "
            f"do not fit into {room}: raise mem_fraction_static, free memory or use smaller pages"
        )
    return fits if max_total_tokens is None else max_total_tokens - max_total_tokens % page_size


def _check_ranges(
    bytes_per_token: int, page_size: int, fraction: float | None, max_total_tokens: int | None
) -> None:
    if bytes_per_token < 1:
        raise ValueError(f"bytes_per_token {bytes_per_token} must be at least 1")
    if page_size < 1 or page_size & (page_size - 1):
        raise ValueError(f"page_size {page_size} is no power of two: use 1, 2, 4, 8, 16, ...")
    if fraction is not None and not 0 < fraction <= 1:
        raise ValueError(
            f"mem_fraction_static {fraction} is not in (0, 1]: give the share of the available "
            "memory that the pool may take"
        )
    if max_total_tokens is not None and max_total_tokens < page_size:
        raise ValueError(
            f"max_total_tokens {max_total_tokens} is less than a page of {page_size} tokens: raise "
            "it, or use smaller pages"
        )


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / (1 << 20):.1f} MiB"
