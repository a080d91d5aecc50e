"""One streamed answer on a time line: when each piece of text came, and how it ended.

Owns what is noted of an answer. It is fed with bytes and a clock, and knows no network.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from phloem.server.openai_wire import BadStream, Event, EventReader, Usage, error_message

Clock = Callable[[], float]
"""Seconds from any start, never going back."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of a request; times are seconds from its sending."""

    text: str = ""
    arrivals: tuple[float, ...] = ()
    """When each piece of text came."""
    ended: float = 0.0
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    """Prompt tokens that the server found in its cache; None where it does not say, as for the
    other two.
    """
    finish_reason: str | None = None
    error: str | None = None
    """Why the request failed; None when it did not."""


class AnswerReader:
    """Takes a streamed answer as it comes.

    Pieces that arrive in one read of the network have one arrival time each, and the same.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._sent = clock()
        self._events = EventReader()
        self._pieces: list[str] = []
        self._arrivals: list[float] = []
        self._usage = Usage()
        self._finish_reason: str | None = None
        self._error: str | None = None

    def feed(self, data: bytes) -> str:
        """Take bytes that have just come; return the text in them."""
        now = self._clock() - self._sent
        known = len(self._pieces)
        try:
            for event in self._events.feed(data):
                self._take(event, now)
        except BadStream as error:
            self._error = self._error or str(error)
        return "".join(self._pieces[known:])

    def end(self, error: str | None = None) -> Answer:
        """The answer, after its last bytes; `error` says what broke it off, if anything did."""
        usage = self._usage
        return Answer(
            text="".join(self._pieces),
            arrivals=tuple(self._arrivals),
            ended=self._clock() - self._sent,
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            cached_tokens=usage.cached_tokens,
            finish_reason=self._finish_reason,
            error=error or self._error or self._cut_short(),
        )

    def _take(self, event: Event, now: float) -> None:
        if event.error is not None:
            self._error = self._error or error_message(event.error)
        if event.usage is not None:
            self._usage = event.usage
        for choice in event.choices or ():
            if choice.piece:
                self._pieces.append(choice.piece)
                self._arrivals.append(now)
            self._finish_reason = choice.finish_reason or self._finish_reason

    def _cut_short(self) -> str | None:
        if self._finish_reason is None and not self._events.done:
            return "the stream ended without a finish reason"
        return None
