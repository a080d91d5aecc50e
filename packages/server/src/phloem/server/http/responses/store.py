"""Responses that clients may come back to: bounded, in memory, each for its caller alone."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from phloem.server.http.errors import ApiError

MOST_RESPONSES = 1000
MOST_BYTES = 64 << 20
_BYTES_BESIDE = 1000
"""What a response takes in memory beside its JSON, about."""


class Owner(NamedTuple):
    """Whose a response is."""

    key: str | None
    """Of the API; None: without one. Its owners share in the room as one."""
    tenant: str | None = None


@dataclass(frozen=True, slots=True)
class Stored:
    """One response, and what it was asked."""

    response: bytes
    """As JSON."""
    input: bytes
    """The items that came with its request, as JSON."""
    previous: str | None

    @property
    def size(self) -> int:
        """Bytes that it takes, about."""
        return len(self.response) + len(self.input) + _BYTES_BESIDE


@dataclass(slots=True)
class _Share:
    """What one key has, that which nobody used for longest first."""

    stored: OrderedDict[tuple[Owner, str], Stored] = field(default_factory=OrderedDict)
    bytes: int = 0


class ResponseStore:
    """Responses by caller and id.

    Where there is no room, the key that has most of it gives way: of its responses, that which
    nobody used for longest. So a key's responses go by those of others only where it has more than
    its fair share. A response that goes on from another uses that one too.
    """

    def __init__(self, most: int = MOST_RESPONSES, most_bytes: int = MOST_BYTES) -> None:
        """At most so many, of at most so many bytes; 0 of either: none."""
        self._most = most
        self._most_bytes = most_bytes
        self._shares: dict[str | None, _Share] = {}
        self._count = self._bytes = 0

    def __len__(self) -> int:
        return self._count

    @property
    def bytes(self) -> int:
        """What all of them take, about."""
        return self._bytes

    def put(self, owner: Owner, id: str, made: Stored) -> None:
        """Keep a response, unless it is too large for that by itself."""
        if made.size > self._most_bytes:
            return
        share = self._shares.setdefault(owner.key, _Share())
        share.stored[owner, id] = made
        share.bytes += made.size
        self._count += 1
        self._bytes += made.size
        while self._count > self._most:
            self._make_room(lambda share: len(share.stored))
        while self._bytes > self._most_bytes:
            self._make_room(lambda share: share.bytes)

    def _make_room(self, size: Callable[[_Share], int]) -> None:
        """Let go of one, of the largest share."""
        key = max(self._shares, key=lambda key: size(self._shares[key]))
        self._take(next(iter(self._shares[key].stored)))

    def _take(self, where: tuple[Owner, str]) -> None:
        share = self._shares[where[0].key]
        size = share.stored.pop(where).size
        share.bytes -= size
        self._count -= 1
        self._bytes -= size
        if not share.stored:
            del self._shares[where[0].key]

    def get(self, owner: Owner, id: str, param: str | None = None) -> Stored:
        """A response, which is used by that.

        Raises:
            ApiError: 404, naming `param`: its caller has none of this id, or no longer.
        """
        try:
            stored = self._shares[owner.key].stored
            stored.move_to_end((owner, id))
        except KeyError:
            raise ApiError(
                f"response {id[:100]!r} is not here: it never was, was not to be stored, was "
                "deleted, or gave way to newer ones",
                404,
                param=param,
                code="response_not_found",
            ) from None
        return stored[owner, id]

    def delete(self, owner: Owner, id: str) -> None:
        """Forget a response.

        Raises:
            ApiError: 404, as `get`.
        """
        self.get(owner, id)
        self._take((owner, id))

    def chain(self, owner: Owner, id: str | None) -> list[Stored]:
        """A response and all those before it, the first one first; None: none.

        Raises:
            ApiError: 404, where one of them is gone.
        """
        found = []
        while id is not None:
            found.append(self.get(owner, id, "previous_response_id"))
            id = found[-1].previous
        return found[::-1]


def history_of(chain: Iterable[Stored]) -> list[Any]:
    """All items, of inputs and outputs, of responses that follow each other."""
    items = []
    for stored in chain:
        items += msgspec.json.decode(stored.input)
        items += msgspec.json.decode(stored.response)["output"]
    return items
