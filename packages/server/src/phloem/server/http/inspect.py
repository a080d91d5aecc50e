"""`GET /ui/api/...`: what the operations view of the page at `/ui` shows; for admins.

Owns what of the engine is put in front of people: numbers, and namespaces under names that tell
nothing of salts and keys. Asked each second by each open page, so the scheduler is asked at most
twice a second however many there are.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from fastapi import FastAPI, Request
from prometheus_client import CollectorRegistry
from starlette.exceptions import HTTPException
from starlette.responses import Response

from phloem.server.frontend import ServiceUnavailable
from phloem.server.http.auth import admin_wanted
from phloem.server.http.errors import json_response, refusing
from phloem.server.http.service import Service
from phloem.server.http.tenancy import caller_of

NODES = 240
"""Of the tree, in one snapshot."""
_SECONDS_FRESH = 0.5
_SECONDS_TO_WAIT = 5.0

HISTOGRAMS = {
    "ttft": "phloem_time_to_first_token_seconds",
    "itl": "phloem_inter_token_latency_seconds",
}
TOTALS = {
    "prompt_tokens": "phloem_prompt_tokens_total",
    "cached_tokens": "phloem_cached_tokens_total",
    "generation_tokens": "phloem_generation_tokens_total",
}
"""What the page calls our metrics."""


def add_inspection(app: FastAPI, service: Service) -> None:
    """Add the routes."""
    snapshots = _Snapshots(service)

    @app.get("/ui/api/snapshot", include_in_schema=False)
    async def snapshot(request: Request) -> Response:
        """The scheduler, its pool and tree, latencies, and the last requests."""
        _check_admin(request)
        return _fresh(Response(await snapshots.get(), media_type="application/json"))

    @app.get("/ui/api/request", include_in_schema=False)
    async def one_request(request: Request, id: str) -> Response:
        """One of the last requests with the times of its tokens."""
        _check_admin(request)
        found = service.generation.recent.described(id)
        if found is None:
            raise HTTPException(404, "that request is none of the last ones")
        return _fresh(json_response(found))

    @app.get("/ui/api/node", include_in_schema=False)
    async def node(request: Request, id: str) -> Response:
        """The text of the first tokens of a node of the tree; null if it is there no more."""
        _check_admin(request)
        with refusing("id"):
            tokens = await _within(service.frontend.tree_node(id))
        tokenizer = service.frontend.tokenizer
        text = None if tokens is None else tokenizer.decode(tokens, skip_special_tokens=False)
        return _fresh(json_response({"id": id, "tokens": len(tokens or ()), "text": text}))


def _check_admin(request: Request) -> None:
    # The gate has looked too; here it holds wherever the routes are put.
    if not caller_of(request).admin:
        raise admin_wanted("what shows the requests of all callers")


def _fresh(response: Response) -> Response:
    response.headers["Cache-Control"] = "no-store"
    return response


class _Snapshots:
    """The last snapshot, taken anew when it is asked for and no longer fresh."""

    def __init__(self, service: Service, clock: Callable[[], float] = time.monotonic) -> None:
        self._service = service
        self._clock = clock
        self._lock = asyncio.Lock()
        self._secret = secrets.token_bytes(16)
        self._body = b""
        self._taken: float | None = None

    async def get(self) -> bytes:
        """As JSON.

        Raises:
            ServiceUnavailable: the scheduler does not answer.
        """
        async with self._lock:
            if self._taken is None or self._clock() - self._taken > _SECONDS_FRESH:
                self._body = msgspec.json.encode(await self._take())
                self._taken = self._clock()
        return self._body

    async def _take(self) -> dict[str, Any]:
        service = self._service
        frontend = service.frontend
        state, shown = await _within(asyncio.gather(frontend.state(), frontend.tree(NODES)))
        for space in (shown["tree"] or {}).get("namespaces", ()):
            space["namespace"] = self._name(space["namespace"])
        return {
            "time": time.time(),
            "model": service.model,
            "draining": frontend.draining,
            "state": state,
            **shown,
            "requests": service.generation.recent.summaries(),
            **_measured(service.metrics.registry),
        }

    def _name(self, namespace: list[Any]) -> str:
        """Equal for equal namespaces as long as this server runs, and nothing to guess from."""
        if not namespace:
            return ""
        data = msgspec.json.encode(namespace)
        return hashlib.blake2s(data, key=self._secret, digest_size=3).hexdigest()


async def _within(answer: Any) -> Any:
    try:
        return await asyncio.wait_for(answer, _SECONDS_TO_WAIT)
    except asyncio.TimeoutError:
        raise ServiceUnavailable(
            f"the scheduler did not answer within {_SECONDS_TO_WAIT:g} s"
        ) from None


def _measured(registry: CollectorRegistry) -> dict[str, Any]:
    """`histograms` (`bounds` of the buckets in seconds, the last without one, and the `counts` of
    each) and `totals`, each summed over its labels.
    """
    below = {name: defaultdict[float, float](float) for name in HISTOGRAMS.values()}
    totals = defaultdict[str, float](float)
    for sample in (sample for family in registry.collect() for sample in family.samples):
        name = sample.name.removesuffix("_bucket")
        if name in below and "le" in sample.labels:
            below[name][float(sample.labels["le"])] += sample.value
        else:
            totals[sample.name] += sample.value
    return {
        "histograms": {key: _histogram(below[name]) for key, name in HISTOGRAMS.items()},
        "totals": {key: totals[name] for key, name in TOTALS.items()},
    }


def _histogram(below: Mapping[float, float]) -> dict[str, list[float]]:
    bounds = sorted(below)
    counts = [
        below[bound] - (below[bounds[at - 1]] if at else 0) for at, bound in enumerate(bounds)
    ]
    return {"bounds": bounds[:-1], "counts": counts}
