"""Which replica a request goes to: routers over the numbers of the replicas.

Owns the three rules. A router knows what it sent where and how many requests each replica has not
answered; it does not look into a replica, as a real one cannot.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import count
from typing import Protocol

import numpy as np
import numpy.typing as npt

from phloem.radix_cache import Key
from phloem.radix_cache.routing import CacheAware, RoutingTree


class Router(Protocol):
    """Chooses replicas."""

    def choose(self, prompt_ids: npt.NDArray[np.int32], loads: Mapping[int, int]) -> int:
        """The replica for a prompt; `loads` has the requests in each that have not ended."""
        ...


class RoundRobin:
    """round-robin: one after the other. Even by count; caches are used as luck has it."""

    def __init__(self) -> None:
        self._next = count()

    def choose(self, prompt_ids: npt.NDArray[np.int32], loads: Mapping[int, int]) -> int:
        """The next in turn."""
        return next(self._next) % len(loads)


class LeastLoad:
    """least-load: the one with fewest unanswered requests, the first of them."""

    def choose(self, prompt_ids: npt.NDArray[np.int32], loads: Mapping[int, int]) -> int:
        """The least loaded."""
        return min(loads, key=loads.__getitem__)


class CacheAwareRouter:
    """cache-aware: where most of the prompt was sent before, unless that piles up.

    The tree and the rule are `phloem.radix_cache.routing`'s; the tree remembers of each replica as
    many tokens as its pool holds.
    """

    _MOST = 1 << 26

    def __init__(self, pool_tokens: int, page_size: int, replicas: int) -> None:
        total = min(pool_tokens * replicas, self._MOST)
        self._tree: RoutingTree[int] = RoutingTree(pool_tokens, total, page_size)
        self._rule = CacheAware()

    def choose(self, prompt_ids: npt.NDArray[np.int32], loads: Mapping[int, int]) -> int:
        """By the rule; notes the choice."""
        return self._tree.route(Key(prompt_ids.data), loads, self._rule).worker


_ROUTERS: dict[str, Callable[[int, int, int], Router]] = {
    "round-robin": lambda pool, page, replicas: RoundRobin(),
    "least-load": lambda pool, page, replicas: LeastLoad(),
    "cache-aware": CacheAwareRouter,
}


def router_names() -> tuple[str, ...]:
    """The names that `create_router` knows."""
    return tuple(_ROUTERS)


def create_router(name: str, pool_tokens: int, page_size: int, replicas: int) -> Router:
    """The router of a known name, for replicas of this pool."""
    return _ROUTERS[name](pool_tokens, page_size, replicas)
