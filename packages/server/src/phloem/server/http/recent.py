"""The last sequences that were asked for and how each went, for the page at `/ui`.

Owns a bounded record of when their news came. What the scheduler measured of a sequence comes with
its last news; until then the times are those of this process.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from itertools import chain, islice
from typing import Any

import msgspec

from phloem.server.frontend import GenerationRequest
from phloem.server.messages import TextNews

KEPT = 60
"""Sequences that have ended."""
MOST_STEPS = 400
"""Times kept of one sequence; where there are more, every second one goes, and so on."""


class Trace:
    """One sequence, from its start to its end."""

    __slots__ = (
        "_began",
        "_clock",
        "_every",
        "_first",
        "_last",
        "_recent",
        "_skipped",
        "_steps",
        "_timings",
        "arrived",
        "finish",
        "prompt_tokens",
        "rid",
        "seconds",
    )

    def __init__(
        self,
        recent: Recent,
        request: GenerationRequest,
        began: float,
        clock: Callable[[], float],
    ) -> None:
        self._recent = recent
        self._clock = clock
        self._began = began
        self._every = 1
        self._first: float | None = None
        self._skipped = 0
        self._steps: list[tuple[float, int]] = []
        self._last: TextNews | None = None
        self._timings: dict[str, float] | None = None
        self.rid = request.rid
        self.prompt_tokens = len(request.prompt_ids)
        self.arrived = time.time()
        self.finish: str | None = None
        self.seconds: float | None = None
        """From start to end."""

    def take(self, news: TextNews) -> None:
        """Note news of the sequence."""
        self._last = news
        if self._first is None and news.completion_tokens:
            self._first = self._clock() - self._began
        if news.timings is not None:
            self._timings = news.timings
        self._skipped += 1
        if self._skipped >= self._every or news.finish is not None:
            self._skipped = 0
            self._steps.append((self._clock() - self._began, news.completion_tokens))
            if len(self._steps) > MOST_STEPS:
                # The first and the last stay.
                self._steps[1:-1] = self._steps[2:-1:2]
                self._every *= 2
        if news.finish is not None:
            self.end(news.finish.type)

    def end(self, reason: str) -> None:
        """Note that it ended; nothing, if it had ended before."""
        if self.finish is None:
            self.finish = reason
            self.seconds = self._clock() - self._began
            self._recent.ended(self)

    def summary(self) -> dict[str, Any]:
        """How it went, times in seconds; `first` is that of its first token."""
        last = self._last
        return {
            "rid": self.rid,
            "arrived": self.arrived,
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": last.completion_tokens if last else 0,
            "cached_tokens": last.cached_tokens if last else None,
            "retractions": last.retractions if last else 0,
            "finish": self.finish,
            "seconds": self.seconds or self._clock() - self._began,
            "first": self._first,
            "timings": self._timings,
        }

    def described(self) -> dict[str, Any]:
        """The same, and its `steps`, pairs of the time since the start and the tokens that were
        there by then, and `marks`, which the scheduler tells at the end.
        """
        last = self._last
        return {
            **self.summary(),
            "marks": [
                {"kind": kind, "at": round(at, 4), "tokens": tokens}
                for kind, at, tokens in (last and last.marks) or ()
            ],
            "steps": [(round(at, 4), tokens) for at, tokens in self._steps],
        }


class Recent:
    """The sequences that run, and the last ones that have ended."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.now = clock
        """Seconds."""
        self._running: dict[Trace, None] = {}
        self._ended: deque[tuple[Trace, msgspec.Raw]] = deque(maxlen=KEPT)
        """With their summaries, encoded once."""

    def begin(self, request: GenerationRequest, began: float) -> Trace:
        """Take note of a sequence that was started at a time of `now`."""
        trace = Trace(self, request, began, self.now)
        self._running[trace] = None
        return trace

    def ended(self, trace: Trace) -> None:
        """From a trace, once."""
        del self._running[trace]
        self._ended.append((trace, msgspec.Raw(msgspec.json.encode(trace.summary()))))

    def summaries(self) -> list[dict[str, Any] | msgspec.Raw]:
        """Of the newest `KEPT` of those that run, newest first, then of the ended ones likewise; to
        be encoded as JSON.
        """
        running = islice(reversed(self._running), KEPT)
        return [
            *(trace.summary() for trace in running),
            *(summary for _, summary in reversed(self._ended)),
        ]

    def described(self, rid: str) -> dict[str, Any] | None:
        """All of the newest sequence with an id; None if it is not known any more."""
        ended = (trace for trace, _ in reversed(self._ended))
        traces = chain(reversed(self._running), ended)
        found = next((trace for trace in traces if trace.rid == rid), None)
        return None if found is None else found.described()
