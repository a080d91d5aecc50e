"""Requests as the analysis keeps them, and the bounded sample of the most recent ones."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from ..key import Namespace


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt and what was generated for it, packed (see `Unit`)."""

    prompt: bytes
    namespace: Namespace
    output: bytes


class Sample:
    """The most recent requests, as many as fit into `limit` packed bytes of prompts and outputs."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._bytes = 0
        self._requests: deque[Request] = deque()

    def add(self, request: Request) -> None:
        """Keep a request, and let go of the oldest ones that no longer fit."""
        self._requests.append(request)
        self._bytes += len(request.prompt) + len(request.output)
        while self._bytes > self._limit:
            oldest = self._requests.popleft()
            self._bytes -= len(oldest.prompt) + len(oldest.output)

    def requests(self) -> list[Request]:
        """The requests, oldest first."""
        return list(self._requests)
