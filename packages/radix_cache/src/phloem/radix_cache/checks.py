"""What a client must hold to when it gives something back, and the words if it did not."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from .errors import CacheInUse, LockReleased, StaleMatch
from .handles import Handle, Match, Receipt
from .ledger import Ledger
from .node import Copy

if TYPE_CHECKING:
    from .tree import RadixCache


def device_copy(cache: RadixCache, handle: Handle) -> Copy:
    """The device copy at the end of a handle, if its tokens are all still there."""
    if handle.cache is not cache:
        raise ValueError("the handle belongs to another cache: use it there")
    node = handle.node
    # A removed node has no copy; a node whose tail was evicted ends earlier than the handle.
    copy = node.device
    if handle.copy is None:
        raise StaleMatch(
            f"the {handle.length} tokens of this handle were in the host tier only: match again, "
            "and load them"
        )
    if copy is None or copy is not handle.copy or node.end != handle.length:
        raise StaleMatch(
            f"the {handle.length} tokens of this handle were evicted, in part or whole, since "
            "it was made: match again, and lock before anything can be evicted"
        )
    return copy


def host_copy(match: Match) -> Copy:
    """The host copy at the end of a match, if its tokens are all still there."""
    if not match.host_length:
        raise ValueError(
            f"this match found {match.length} tokens on the device and no more in the host tier: "
            "there is nothing to load, ask for it only if host_length is not 0"
        )
    node = match.host_node
    copy = node.host
    end = match.length + match.host_length
    if copy is None or copy is not match.host_copy or node.end != end:
        raise StaleMatch(
            f"the {match.host_length} tokens that this match found in the host tier were "
            "evicted, in part or whole, since it was made: match again, and load at once"
        )
    return copy


def receipt(cache: RadixCache, given: Receipt, wanted: type[Receipt]) -> None:
    """`given` is a receipt of that kind, one of this cache's, and was not given back before."""
    kind = type(given).__name__.lower()
    if not isinstance(given, wanted):
        raise TypeError(
            f"a {kind} was given where a {wanted.__name__.lower()} is taken back: locks go to "
            "unlock, backups to backed_up, loads to loaded, and copies that failed to cancel"
        )
    if given.cache is not cache:
        raise ValueError(f"the {kind} belongs to another cache: give it back there")
    if given.released:
        raise LockReleased(
            f"this {kind} of {given.length} tokens was given back before: give each receipt "
            "back once"
        )


def enough(given: int, needed: int, tokens: int, page_size: int) -> None:
    """There is a value for each token of the whole pages of a key."""
    if given < needed:
        raise ValueError(
            f"{given} values were given for a key of {tokens} tokens: its whole pages "
            f"(page_size {page_size}) need {needed}"
        )


def retention(retain_for: float | None, priority: int) -> float:
    """`retain_for` in seconds, 0.0 for None; and `priority` is one."""
    if not isinstance(priority, int):
        raise TypeError(f"priority {priority!r} is no int: leaves are sorted by it")
    if retain_for is None:
        return 0.0
    try:
        seconds = float(retain_for)
    except OverflowError:
        seconds = float("nan")
    if not seconds > 0:
        raise ValueError(f"retain_for {retain_for} is not positive: give seconds, or None")
    return seconds


def unused(ledgers: Iterable[Ledger]) -> None:
    """Nothing is locked, and no copy is in flight."""
    for ledger in ledgers:
        protected = ledger.counts[1]
        if protected:
            raise CacheInUse(
                f"{protected} tokens are locked in the {ledger.tier.name.lower()} tier: unlock "
                "them, or finish the copies in flight, before reset"
            )
