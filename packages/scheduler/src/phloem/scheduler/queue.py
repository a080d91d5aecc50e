"""The requests that wait for admission, in order of arrival, retracted ones in front."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from phloem.scheduler.request import Request


class WaitingQueue:
    """An ordered set of requests with O(1) add, remove and look-up by id."""

    def __init__(self) -> None:
        self._requests: OrderedDict[str, Request] = OrderedDict()

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests.values())

    def add(self, request: Request) -> None:
        """At the end."""
        self._requests[request.rid] = request

    def add_first(self, request: Request) -> None:
        """In front of all: a retracted request goes on before new ones begin."""
        self._requests[request.rid] = request
        self._requests.move_to_end(request.rid, last=False)

    def get(self, rid: str) -> Request | None:
        """The waiting request of this id."""
        return self._requests.get(rid)

    def remove(self, rid: str) -> Request | None:
        """Take a request out; None if it does not wait here."""
        return self._requests.pop(rid, None)
