"""What an answer tells of its own making: how long each part took, and how it met the cache.

Owns the names and units of these, in bodies and in headers. They are extensions of every API.
"""

from __future__ import annotations

from typing import Any

from phloem.server.messages import TextNews

Headers = list[tuple[bytes, bytes]]


def truth_fields(last: TextNews) -> dict[str, Any]:
    """Of a sequence that has ended: `timings`, `retractions` and, where it was asked for,
    `cache_miss`.
    """
    fields: dict[str, Any] = {"retractions": last.retractions}
    if last.timings is not None:
        fields["timings"] = timings_of(last)
    if last.cache_miss is not None:
        fields["cache_miss"] = {"reason": last.cache_miss.reason, "at": last.cache_miss.at}
    return fields


def timings_of(news: TextNews) -> dict[str, float | None]:
    """Milliseconds in the queue, from there to the first token, from there to the end, and from one
    token to the next; None: it did not come to that.
    """
    given = news.timings or {}
    queue, first, decode = given.get("queue"), given.get("ttft"), given.get("decode")
    steps = news.completion_tokens - 1
    return {
        "queue_ms": _ms(queue),
        "prefill_ms": None if queue is None or first is None else _ms(first - queue),
        "decode_ms": _ms(decode),
        "per_token_ms": None if decode is None or steps < 1 else _ms(decode / steps),
    }


def truth_headers(news: TextNews) -> Headers:
    """The same as headers, as far as it is known with these news."""
    timings = timings_of(news)
    values: dict[bytes, object] = {
        b"x-phloem-cached-tokens": news.cached_tokens,
        b"x-phloem-queue-ms": timings["queue_ms"],
        b"x-phloem-prefill-ms": timings["prefill_ms"],
    }
    if news.cache_miss is not None:
        values[b"x-phloem-cache-miss"] = f"{news.cache_miss.reason}; at={news.cache_miss.at}"
    if news.finish is not None:
        values[b"x-phloem-decode-ms"] = timings["decode_ms"]
        values[b"x-phloem-per-token-ms"] = timings["per_token_ms"]
        values[b"x-phloem-retractions"] = news.retractions
    return [(name, f"{value}".encode()) for name, value in values.items() if value is not None]


def _ms(seconds: float | None) -> float | None:
    # To the microsecond: what is beyond is noise.
    return None if seconds is None else round(seconds * 1000, 3)
