"""Decode steps taken together: for simulations, which know tokens before the steps are run.

While nobody waits, nobody ends and memory suffices, each step is a decode of the same requests.
Owns how many such steps are surely ahead, and their effect all at once: exactly that of single
steps, but that nobody is told of the tokens.
"""

from __future__ import annotations

import numpy as np

from phloem.mem_pool import CacheManager
from phloem.scheduler.budget import NewTokenRatio
from phloem.scheduler.table import RUNNING, Ints, RequestTable


def steady_steps(table: RequestTable, manager: CacheManager, limit: int) -> int:
    """How many of the next steps, at most `limit`, decode everybody who holds memory, and end or
    retract nobody; nobody may wait meanwhile.
    """
    held = table.held
    if not len(held) or table.in_flight[held].any() or table.watched[held].any():
        return 0
    num_tokens = table.num_tokens[held]
    one_new = (table.status[held] == RUNNING) & (table.scheduled[held] == num_tokens - 1)
    limit = min(limit, int((table.end[held] - num_tokens).min()) - 1)
    if limit < 1 or not one_new.all():
        return 0
    allocated = manager.marks.allocated[held]
    pages = manager.available // manager.page_size
    if manager.slots.pages_needed_by_all(allocated, limit) <= pages:
        return limit
    low, high = 0, limit
    while high - low > 1:
        middle = (low + high) // 2
        fits = manager.slots.pages_needed_by_all(allocated, middle) <= pages
        low, high = (middle, high) if fits else (low, middle)
    return low


def take_steps(
    table: RequestTable, manager: CacheManager, ratio: NewTokenRatio, steps: int, tokens: Ints
) -> None:
    """Take steady steps, of which each gives `tokens[i]` to the i-th row that is held."""
    held = table.held
    if not manager.extend_rows(held, steps):
        raise ValueError(f"memory does not suffice for {steps} steps: take steady ones only")
    manager.commit_rows(held, steps)
    num_tokens = table.num_tokens[held]
    table.token_ids[held[:, None], num_tokens[:, None] + np.arange(steps)] = tokens[:, None]
    table.num_tokens[held] = num_tokens + steps
    table.scheduled[held] += steps
    table.unsettle()
    for _ in range(steps):
        ratio.step()
