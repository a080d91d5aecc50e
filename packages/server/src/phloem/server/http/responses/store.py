"""Responses that clients may come back to: bounded, in memory, each for its caller alone."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from phloem.server.http.errors import ApiError

MOST_RESPONSES = 1000
MOST_BYTES = 64 << 20
_BYTES_BESIDE = 1000
"""What a response takes in memory beside its JSON, about."""


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


class ResponseStore:
    """Responses by caller and id; those that nobody used for longest go first.

    A response that goes on from another uses that one too.
    """

    def __init__(self, most: int = MOST_RESPONSES, most_bytes: int = MOST_BYTES) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._stored: OrderedDict[tuple[Hashable, str], Stored] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._stored)

    @property
    def bytes(self) -> int:
        """What all of them take, about."""
        return self._bytes

    def put(self, owner: Hashable, id: str, made: Stored) -> None:
        """Keep a response, unless it is too large for that by itself."""
        if made.size > self._most_bytes:
            return
        self._stored[owner, id] = made
        self._bytes += made.size
        while len(self._stored) > self._most or self._bytes > self._most_bytes:
            _, gone = self._stored.popitem(last=False)
            self._bytes -= gone.size

    def get(self, owner: Hashable, id: str, param: str | None = None) -> Stored:
        """A response, which is used by that.

        Raises:
            ApiError: 404, naming `param`: its caller has none of this id, or no longer.
        """
        try:
            self._stored.move_to_end((owner, id))
        except KeyError:
            raise ApiError(
                f"response {id[:100]!r} is not here: it never was, was not to be stored, was "
                "deleted, or gave way to newer ones",
                404,
                param=param,
                code="response_not_found",
            ) from None
        return self._stored[owner, id]

    def delete(self, owner: Hashable, id: str) -> None:
        """Forget a response.

        Raises:
            ApiError: 404, as `get`.
        """
        self._bytes -= self.get(owner, id).size
        del self._stored[owner, id]

    def chain(self, owner: Hashable, id: str | None) -> list[Stored]:
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
