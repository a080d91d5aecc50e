"""The requests that wait for admission, in order of arrival, retracted ones in front."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from phloem.scheduler.request import Request


class WaitingQueue:
    """An ordered set of requests with O(1) add, remove and look-up by id.

    Attributes:
        tokens_left: tokens of the prompts that have left it for good so far; who is retracted is
            not new any more, and is not counted a second time.
        new_tokens: tokens of the prompts that wait to be let in for the first time.
        version: differs once somebody came or left.
        passes: passes so far that let somebody in. A request's own count is the difference to what
            stood here when it came, so that nobody has to be touched in every pass.
    """

    def __init__(self) -> None:
        self.version = 0
        self.passes = 0
        self.new_tokens = 0
        self.tokens_left = 0
        self._back: OrderedDict[str, Request] = OrderedDict()
        self._new: OrderedDict[str, Request] = OrderedDict()

    def __len__(self) -> int:
        return len(self._back) + len(self._new)

    def __iter__(self) -> Iterator[Request]:
        yield from self._back.values()
        yield from self._new.values()

    @property
    def num_new(self) -> int:
        """Requests that wait to be let in for the first time."""
        return len(self._new)

    def add(self, request: Request) -> None:
        """At the end."""
        self.new_tokens += request.num_prompt
        self._new[request.rid] = self._came(request)

    def add_first(self, request: Request) -> None:
        """In front of all: a retracted request goes on before new ones begin."""
        self._back[request.rid] = self._came(request)
        self._back.move_to_end(request.rid, last=False)

    def get(self, rid: str) -> Request | None:
        """The waiting request of this id."""
        return self._new.get(rid) or self._back.get(rid)

    def remove(self, rid: str) -> Request | None:
        """Take a request out; None if it does not wait here."""
        request = self._new.pop(rid, None)
        if request is not None:
            self.new_tokens -= request.num_prompt
            self.tokens_left += request.num_prompt
        else:
            request = self._back.pop(rid, None)
        self.version += request is not None
        return request

    def retracted(self) -> list[Request]:
        """Those that had been let in before, the last to be retracted first."""
        return list(self._back.values())

    def new(self) -> list[Request]:
        """Those that were not, in order of arrival."""
        return list(self._new.values())

    def _came(self, request: Request) -> Request:
        request.came_at_pass = self.passes
        self.version += 1
        return request
