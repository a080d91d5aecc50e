"""What is known of the requests in flight, for whoever asks after the engine has died.

Owns the record of each and what of it may be shown. Without leave to show texts, it has lengths,
times and parameters alone: nothing of a prompt or an output, stop strings and constraints included.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Protocol

from phloem.scheduler import SamplingParams
from phloem.server.frontend import GenerationRequest
from phloem.server.messages import TextNews

_TEXTS = ("stop", "logit_bias", "stop_token_ids")
"""Parameters that are parts of texts."""
_DEFAULTS = SamplingParams()


@dataclass(slots=True, eq=False)
class Flight:
    """One request, from its start to its end."""

    request: GenerationRequest
    started: float = field(default_factory=time.monotonic)
    first: float | None = None
    """When its first news were here."""
    last: TextNews | None = None
    texts: list[str] | None = None
    """Of its output, where these are kept."""

    def take(self, news: TextNews) -> None:
        """Note news of it."""
        if self.first is None:
            self.first = time.monotonic()
        self.last = news
        if self.texts is not None:
            self.texts.append(news.text)


class Report(Protocol):
    """Hears of a failure, before the requests hear of it that were in flight."""

    def __call__(self, reason: str, flights: Sequence[Flight], dead: bool) -> object:
        """`reason` is a sentence; `dead`: the engine has ended, and goes on otherwise."""
        ...


def given_params(params: SamplingParams) -> dict[str, Any]:
    """The parameters that are not the default."""
    values = {field.name: getattr(params, field.name) for field in fields(params)}
    return {name: value for name, value in values.items() if value != getattr(_DEFAULTS, name)}


def described(flight: Flight, now: float, texts: bool) -> dict[str, Any]:
    """A request as JSON; times in seconds, lengths in tokens.

    Args:
        flight: what is known of it.
        now: on the monotonic clock.
        texts: whether prompt, output and other texts are shown.
    """
    request, last = flight.request, flight.last
    shown: dict[str, Any] = {
        "rid": request.rid,
        "prompt_tokens": len(request.prompt_ids),
        "completion_tokens": last.completion_tokens if last else 0,
        "cached_tokens": last.cached_tokens if last else None,
        "retractions": last.retractions if last else 0,
        "age": round(now - flight.started, 3),
        "first_news_after": flight.first and round(flight.first - flight.started, 3),
        "sampling_params": _shown_params(given_params(request.params), texts),
        "constrained": request.constraint is not None,
        "pooling": request.pooling,
        "priority": request.priority,
        "timeout": request.timeout,
        "queue_timeout": request.queue_timeout,
    }
    if texts:
        shown |= {"prompt_ids": list(request.prompt_ids), "output": "".join(flight.texts or ())}
    return shown


def _shown_params(params: dict[str, Any], texts: bool) -> dict[str, Any]:
    if texts:
        return params
    return {
        name: f"{len(value)} redacted" if name in _TEXTS and value else value
        for name, value in params.items()
    }
