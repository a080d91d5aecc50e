"""From the options to whoever observes a server, and their end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from phloem.server.http_config import HttpArgs
from phloem.server.observability.access_log import AccessLog
from phloem.server.observability.tracing import Tracing
from phloem.server.observability.watch import Observation, Watcher


@contextmanager
def observed(
    http: HttpArgs, model: str, startup_seconds: Mapping[str, float]
) -> Iterator[Observation]:
    """What was asked for; ended afterwards.

    Args:
        http: the options.
        model: what the API calls the model.
        startup_seconds: parts of the start, which may still be filled in.
    """
    watchers: list[Watcher] = []
    if http.log_requests != "off":
        watchers.append(AccessLog())
    tracing = None
    if http.otlp_traces_endpoint is not None:
        tracing = Tracing(http.otlp_traces_endpoint, model)
        watchers.append(tracing)
    try:
        yield Observation(tuple(watchers), http.log_requests == "text", startup_seconds)
    finally:
        if tracing is not None:
            tracing.close()
