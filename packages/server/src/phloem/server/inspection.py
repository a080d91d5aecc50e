"""What the scheduler shows of its cache to a page that asks each second, at a bounded cost.

Owns the shape of two control actions, `tree` and `tree_node`. Who may see what, and what namespaces
are called in front of people, is the HTTP API's affair.
"""

from __future__ import annotations

from typing import Any

from phloem.radix_cache import Outline, OutlineNode, RadixCache
from phloem.scheduler import Scheduler

Value = dict[str, Any]

MOST_NODES = 500
MOST_TOKENS = 512
"""Of one node."""


def tree(scheduler: Scheduler, limit: int) -> Value:
    """The `limit` (at most `MOST_NODES`) nodes of the prefix tree that carry most tokens.

    `pool` has the tokens of the KV cache by state, which make `total`: `free`, `evictable` and
    `protected` (both in the tree; running requests use the latter), and `leased` (what a request
    has for itself). `namespaces` are lists of nodes, parents first, each node as in `OutlineNode`
    with its `id` as a text; `namespace` is in clear. None is shown where nothing is cached at all.
    """
    manager = scheduler.manager
    sizes = manager.tree.sizes
    free, capacity = manager.free_tokens, manager.capacity
    pool = {
        "free": free,
        "evictable": sizes.evictable,
        "protected": sizes.protected,
        "leased": capacity - free - sizes.evictable - sizes.protected,
        "total": capacity,
        "page_size": manager.page_size,
    }
    cache = manager.tree
    if not isinstance(cache, RadixCache):
        return {"pool": pool, "tree": None}
    return {"pool": pool, "tree": _described(cache.outline(max(0, min(limit, MOST_NODES))))}


def tree_node(scheduler: Scheduler, id: str) -> Value:
    """`tokens`: the first ids of a node that `tree` showed (at most `MOST_TOKENS`); None if it is
    there no more.

    Raises:
        ValueError: that is no node's id.
    """
    age, _, end = id.partition(".")
    if not (id.isascii() and age.isdecimal() and end.isdecimal() and len(id) < 40):
        raise ValueError(f"id {id[:40]!r} is no node's: give one that the tree shows, like 12.340")
    cache = scheduler.manager.tree
    if not isinstance(cache, RadixCache):
        return {"tokens": None}
    tokens = cache.outlined_tokens((int(age), int(end)), MOST_TOKENS)
    return {"tokens": None if tokens is None else list(tokens)}


def _described(outline: Outline) -> Value:
    return {
        "policy": outline.policy,
        "nodes": outline.nodes,
        "spaces": outline.namespaces,
        "namespaces": [
            {"namespace": _plain(space.namespace), "nodes": [_node(node) for node in space.nodes]}
            for space in outline.spaces
        ],
    }


def _node(node: OutlineNode) -> Value:
    age, end = node.id
    return node._asdict() | {"id": f"{age}.{end}", "idle": round(node.idle, 1)}


def _plain(part: object) -> object:
    """A namespace with lists for tuples and without bytes, as messages take it."""
    if isinstance(part, tuple):
        return [_plain(each) for each in part]
    return part.hex() if isinstance(part, bytes) else part
