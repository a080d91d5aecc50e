"""In-batch prefix caching: of requests that share a new prefix one computes it, the others hit.

Owns who is held back until a prefix that somebody else is computing is cached. Whose turn it is
says the order of the queue, and what is cached the `CacheManager`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from phloem.mem_pool import CacheManager
from phloem.scheduler.config import SchedulerConfig
from phloem.scheduler.policies import Outlook
from phloem.scheduler.request import Request


class SharedPrefix(Protocol):
    """How much a key shares with earlier ones."""

    @property
    def length(self) -> int:
        """Tokens, in whole pages."""
        ...


class PrefixGroups(Protocol):
    """Keys of one look at the queue; `phloem.radix_cache.SimulatedTree` is one."""

    def add(self, key: Any, item: Any) -> SharedPrefix:
        """Add the next key, a key of the manager's tree; how much it shares with one before it."""
        ...


MakeGroups = Callable[[int], PrefixGroups]
"""Makes an empty one for pages of so many tokens."""


class InBatchSharing:
    """Holds requests back that would compute what another one is computing.

    A request that shares at least `shared_tokens` more than are cached with one whose prefill was
    let in and is not cached yet is passed over, and keeps its place.

    It waits for one that was before it in the order, and only until that one's prefill is processed
    or given up: in the passes until then others may go before it. So a request that is not held
    twice for the same prefix waits at most twice as many passes as its policy promises.

    Args:
        manager: its tree makes the keys.
        make_groups: makes an empty `PrefixGroups`.
        check_tokens: with more of it cached a request is not held back; None: it may be. A small
            number saves looking, but lets requests miss the last chunk of a long prefix.
        shared_tokens: for less than this nobody waits.
    """

    def __init__(
        self,
        manager: CacheManager,
        make_groups: MakeGroups,
        check_tokens: int | None,
        shared_tokens: int,
    ) -> None:
        self._manager = manager
        self._make_groups = make_groups
        self._check_tokens = check_tokens
        self._shared_tokens = shared_tokens
        self._computing: list[Request] = []
        """Whose prefill may not be cached yet, in order of admission."""
        self._groups: PrefixGroups | None = None

    def begin(self) -> None:
        """A new look at the queue."""
        self._computing = [r for r in self._computing if _is_computing(r)]
        self._groups = None

    def let_in(self, request: Request) -> None:
        """A request was let in."""
        self._computing.append(request)
        if self._groups is not None:
            self._groups.add(self._key(request), request)

    def holds(self, request: Request, outlook: Outlook) -> bool:
        """Whether a request should rather wait."""
        if not self._computing:
            return False
        cached, page = outlook.cached(request), self._manager.page_size
        reusable = request.num_tokens - 1
        if request.keep_from is not None:
            reusable = min(reusable, request.keep_from)
        reusable -= reusable % page
        if reusable - cached < self._shared_tokens:
            return False
        if self._check_tokens is not None and cached > self._check_tokens:
            return False
        if self._groups is None:
            self._groups = self._make_groups(page)
            for other in self._computing:
                self._groups.add(self._key(other), other)
        shared = self._groups.add(self._key(request), request).length
        return shared - cached >= self._shared_tokens

    def _key(self, request: Request) -> Any:
        return self._manager.tree.key(request.tokens, request.namespace)


def in_batch_sharing(
    config: SchedulerConfig, manager: CacheManager, make_groups: MakeGroups
) -> InBatchSharing | None:
    """As configured; None where nobody waits for a prefix, or nothing is cached at all."""
    shared = config.in_batch_shared_tokens
    if not shared or not manager.shares_prefixes:
        return None
    return InBatchSharing(manager, make_groups, config.in_batch_check_tokens, shared)


def _is_computing(request: Request) -> bool:
    lease = request.lease
    return lease is not None and lease.committed < request.prefill_end
