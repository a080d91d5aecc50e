"""Why a key's tokens are cached as far as they are and no further.

Owns the reasons and their wording. Looks at one namespace, the key's, and changes nothing; reads
beside the writing thread as `peek` does.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from enum import Enum
from typing import NamedTuple

from .ghosts import Ghosts, Shelf
from .key import TOKEN_BYTES, Key, TokenId, common_prefix
from .node import Node


class Reason(str, Enum):
    """Why a match ends where it does."""

    HIT = "hit"
    """All whole pages of the key are cached."""
    SHORT = "shorter than a page"
    EVICTED = "evicted"
    """What comes next was cached until lately."""
    DIFFERS = "differs"
    """What is stored goes on with another token, in the next page or at its first token."""
    NEVER_SEEN = "never seen"
    """Nothing stored in the namespace begins so, or nothing goes on from there."""


class Neighbour(NamedTuple):
    """Of all that is stored, what shares most tokens with the key."""

    at: int
    """How many tokens that is: the position of the first token that differs."""
    token: TokenId
    """The key's token there."""
    stored: TokenId
    """The stored one; where several share as many tokens, that of the one used last."""


class Explanation(NamedTuple):
    """What `RadixCache.explain` found."""

    reason: Reason
    tokens: int
    """Of the key."""
    page_size: int
    device: int
    """How many tokens are cached on the device."""
    host: int
    """How many more only the host tier has."""
    evicted: int
    """How many more were cached until they were evicted, as far as that is remembered."""
    evicted_ago: float | None
    """Seconds since the last of these were evicted; None if none were."""
    neighbour: Neighbour | None
    """Where the key parts from what is stored; None unless the reason is DIFFERS."""

    @property
    def stops_at(self) -> int:
        """The position of the first token that is not cached; the start of a page."""
        return self.device + self.host

    @property
    def sentence(self) -> str:
        """All of it in a sentence for people."""
        if self.reason is Reason.SHORT:
            return (
                f"The key has {_count(self.tokens)}, less than a page of {self.page_size}: "
                "only whole pages are shared."
            )
        return f"{self._cached()}{self._rest()}."

    def _cached(self) -> str:
        if not self.stops_at:
            return f"None of the {_count(self.tokens)} is cached"
        part = "All" if self.stops_at == self.tokens else f"The first {self.stops_at} of"
        text = f"{part} {_count(self.tokens)} are cached"
        if self.host:
            text += f", {self.host} of them in host memory only"
        return text

    def _rest(self) -> str:
        if self.reason is Reason.HIT:
            rest = self.tokens - self.stops_at
            return f"; the last {rest} do not fill a page of {self.page_size}" if rest else ""
        if self.reason is Reason.EVICTED:
            which = "next" if self.stops_at else "first"
            return f"; the {which} {self.evicted} were, until {self.evicted_ago:.1f} s ago"
        if self.neighbour is not None:
            at, token, stored = self.neighbour
            page = f" (the page begins at {self.stops_at})" if at > self.stops_at else ""
            return f"; at token {at} the key has {token} where {stored} is stored{page}"
        if self.stops_at:
            return "; nothing that is stored goes on from there"
        return "; nothing stored in this namespace begins with the same token"


def explain(
    top: Node | None, ghosts: Ghosts | None, key: Key, page_size: int, now: float
) -> Explanation:
    """See `RadixCache.explain`; `top` is the root of the key's namespace, if it has one."""
    while True:
        with suppress(_Changed):
            return _explain_once(top, ghosts, key, page_size, now)


class _Changed(Exception):
    """The writer changed something between two looks at it."""


class _Stop(NamedTuple):
    """Where the cached part of a key ends."""

    node: Node | None
    """The node that it ends at or in; None at the top of the namespace."""
    device: int
    end: int
    edge: bytes
    """What the node has from there on; empty at its end."""


def _explain_once(
    top: Node | None, ghosts: Ghosts | None, key: Key, page_size: int, now: float
) -> Explanation:
    tokens = len(key)
    whole = tokens - tokens % page_size
    stop = _descend(top, key, page_size)
    reason = Reason.HIT if whole else Reason.SHORT
    evicted, last = 0, 0.0
    neighbour = None
    if stop.end < whole:
        evicted, last = _lost(ghosts, stop, key, page_size)
        if evicted:
            reason = Reason.EVICTED
        elif (neighbour := _neighbour(top, stop, key, page_size)) is not None:
            reason = Reason.DIFFERS
        else:
            reason = Reason.NEVER_SEEN
        if (node := stop.node) and not (node.parent and node.start < stop.end <= node.end):
            raise _Changed
    return Explanation(
        reason,
        tokens,
        page_size,
        stop.device,
        stop.end - stop.device,
        evicted,
        max(now - last, 0.0) if evicted else None,
        neighbour,
    )


def _descend(top: Node | None, key: Key, page_size: int) -> _Stop:
    data, page = key.data, page_size * TOKEN_BYTES
    at = 0
    device: int | None = None
    node = top
    while node is not None and (child := node.children.get(data[at : at + page])) is not None:
        # Copies first: if they change after this, the tokens are cut before them or not at all.
        on_device, on_host = child.device is not None, child.host is not None
        edge = child.data
        # One without copies is about to be taken out.
        if child.end * TOKEN_BYTES - len(edge) != at or not (on_device or on_host):
            raise _Changed
        if device is None and not on_device:
            device = at // TOKEN_BYTES
        shared = common_prefix(edge, data, at, page)
        at += shared
        node = child
        if shared < len(edge):
            return _stop(node, device, at, edge[shared:])
    return _stop(None if node is top else node, device, at, b"")


def _stop(node: Node | None, device: int | None, at: int, edge: bytes) -> _Stop:
    end = at // TOKEN_BYTES
    return _Stop(node, end if device is None else device, end, edge)


def _lost(ghosts: Ghosts | None, stop: _Stop, key: Key, page_size: int) -> tuple[int, float]:
    """How many tokens after `stop` were evicted, and when the last of them."""
    if ghosts is None:
        return 0, 0.0
    page = page_size * TOKEN_BYTES
    at = start = stop.end * TOKEN_BYTES
    last = 0.0
    shelf: Shelf | None = ghosts.at(key.namespace if stop.node is None else stop.node, stop.end)
    while shelf is not None and (ghost := shelf.ghosts.get(key.data[at : at + page])) is not None:
        data = ghost.data
        if ghost.end * TOKEN_BYTES - len(data) != at:
            raise _Changed
        # What is further down was evicted earlier.
        last = ghost.evicted if at == start else last
        at += common_prefix(data, key.data, at, page)
        shelves = ghost.ghosts
        shelf = None if shelves is None else shelves.get(at // TOKEN_BYTES)
    return (at - start) // TOKEN_BYTES, last


def _neighbour(top: Node | None, stop: _Stop, key: Key, page_size: int) -> Neighbour | None:
    """The stored page after `stop` that is most like the key's: O(children of one node)."""
    data, at = key.data, stop.end * TOKEN_BYTES
    page = page_size * TOKEN_BYTES
    pages = [(stop.edge[:page], 0.0)]
    if not stop.edge:
        node = top if stop.node is None else stop.node
        children = [] if node is None else list(node.children.items())
        pages = [(first, child.last_access) for first, child in children]
    best: tuple[int, float] | None = None
    found = b""
    for stored, used in pages:
        rank = (common_prefix(stored, data, at, TOKEN_BYTES), used)
        if best is None or rank > best:
            best, found = rank, stored
    if best is None or (not at and not best[0]):
        return None
    shared = best[0]
    if shared == len(found):
        raise _Changed
    mine = data[at + shared : at + shared + TOKEN_BYTES]
    theirs = found[shared : shared + TOKEN_BYTES]
    return Neighbour((at + shared) // TOKEN_BYTES, _token(mine), _token(theirs))


def _token(data: bytes) -> TokenId:
    return int.from_bytes(data, sys.byteorder, signed=True)


def _count(tokens: int) -> str:
    return f"{tokens} token{'' if tokens == 1 else 's'}"
