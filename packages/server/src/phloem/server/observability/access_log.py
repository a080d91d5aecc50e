"""One log line for each HTTP request: how it was answered, its tokens, and where its time went."""

from __future__ import annotations

import logging
from typing import Any

from phloem.server.observability.watch import RequestWatch, SequenceRecord
from phloem.server.probe_paths import METRICS, OPEN_PATHS

logger = logging.getLogger("phloem.access")

LEVELS = ("off", "meta", "text")
"""Nothing; no texts; also the beginnings of what was asked and answered."""

_PROBES = OPEN_PATHS | {METRICS, "/health_generate"}
"""What machines ask every few seconds: these lines are of level debug."""


class AccessLog:
    """A `Watcher` that logs."""

    def ended(self, watch: RequestWatch) -> None:
        """Log a request."""
        level = logging.DEBUG if watch.endpoint in _PROBES else logging.INFO
        if logger.isEnabledFor(level):
            method = watch.scope.get("method", "")
            fields = access_fields(watch)
            message = "%s %s %d"
            logger.log(
                level, message, method, watch.endpoint, watch.status, extra={"fields": fields}
            )


def access_fields(watch: RequestWatch) -> dict[str, Any]:
    """What the line has beside method, route and status; times in milliseconds.

    A request with several sequences has the sums of their tokens and the longest of their times.
    """
    fields: dict[str, Any] = {
        "request_id": watch.request_id,
        "caller": _caller(watch),
        "method": watch.scope.get("method"),
        "endpoint": watch.endpoint,
        "status": watch.status,
        "duration_ms": _ms(watch.ended - watch.started),
    }
    for name, start, end in watch.stages:
        fields[f"{name}_ms"] = _ms(end - start)
    if watch.sequences:
        fields |= _generated(watch.sequences)
    fields |= watch.texts
    return {name: value for name, value in fields.items() if value is not None}


def _generated(sequences: list[SequenceRecord]) -> dict[str, Any]:
    def total(name: str) -> int:
        return sum(getattr(each, name) for each in sequences)

    first = [each.first - each.started for each in sequences if each.first is not None]
    fields: dict[str, Any] = {
        "rid": sequences[0].rid,
        "sequences": len(sequences),
        "finish_reason": ",".join(dict.fromkeys(each.reason or "abort" for each in sequences)),
        "prompt_tokens": total("prompt_tokens"),
        "cached_tokens": total("cached_tokens"),
        "completion_tokens": total("completion_tokens"),
        "retractions": total("retractions"),
        "ttft_ms": _ms(min(first)) if first else None,
    }
    longest: dict[str, float] = {}
    for each in sequences:
        for name, start, end in each.stages:
            longest[name] = max(longest.get(name, 0.0), end - start)
    return fields | {f"{name}_ms": _ms(seconds) for name, seconds in longest.items()}


def _caller(watch: RequestWatch) -> str | None:
    """Whose key it came with; None: with none."""
    caller = (watch.scope.get("state") or {}).get("caller")
    return None if caller is None or caller.key_id is None else caller.name


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 2)
