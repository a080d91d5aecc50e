"""Whether a server lives, takes requests and generates: what load balancers and probes ask.

The first answers come at once, from what the engine's heartbeat told last, whatever a step takes;
only `/health_generate` gives the engine work.
"""

from __future__ import annotations

import asyncio
import uuid

from fastapi import APIRouter
from starlette.responses import Response

from phloem.scheduler import MOST_URGENT, SamplingParams
from phloem.server.frontend import (
    SHUTTING_DOWN,
    Frontend,
    GenerationRequest,
    ServiceUnavailable,
)
from phloem.server.http.errors import json_response
from phloem.server.messages import Finish

_ONE_TOKEN = SamplingParams(max_new_tokens=1, temperature=0.0, ignore_eos=True)
_NAMESPACE = ("health",)
"""So that what it caches is no one's prefix."""


def add_health(router: APIRouter, frontend: Frontend, timeout: float) -> None:
    """The routes; a part of the engine may be silent, or generate, for `timeout` seconds."""

    @router.head("/health", include_in_schema=False)
    @router.head("/ping", include_in_schema=False)
    @router.get("/ping", include_in_schema=False)
    @router.get("/health")
    async def health() -> Response:
        """200 while the engine's processes go on or have nothing to do; 503 where one has died, or
        has been silent for too long.
        """
        await frontend.ping(timeout)
        return json_response({"status": "ok"})

    @router.head("/ready", include_in_schema=False)
    @router.get("/ready")
    async def ready() -> Response:
        """The same; 503 too once the server takes no more requests, while it finishes others."""
        if frontend.draining:
            raise ServiceUnavailable(SHUTTING_DOWN, frontend.retry_after)
        return await health()

    @router.head("/startup", include_in_schema=False)
    @router.get("/startup")
    async def startup() -> Response:
        """200: the model is loaded. Before, connections are refused."""
        return json_response({"status": "started"})

    @router.get("/health_generate")
    async def health_generate() -> Response:
        """200 where a token could be generated in time, behind all other requests; else 503."""
        await frontend.ping(timeout)
        try:
            finish = await asyncio.wait_for(_generate(frontend, timeout), timeout)
        except asyncio.TimeoutError:
            raise ServiceUnavailable(f"no token was generated within {timeout:g} s") from None
        if finish.type not in ("stop", "length"):
            reason = finish.message or finish.type
            raise ServiceUnavailable(f"no token was generated: {reason}", finish.retry_after)
        return json_response({"status": "ok"})


async def _generate(frontend: Frontend, timeout: float) -> Finish:
    """How a request for one token ended."""
    request = GenerationRequest(
        f"health-{uuid.uuid4().hex}",
        [0],
        _ONE_TOKEN,
        _NAMESPACE,
        timeout=timeout,
        priority=-MOST_URGENT if frontend.limits.priorities else 0,
    )
    stream = frontend.start(request)
    try:
        async for news in stream:
            if news.finish is not None:
                return news.finish
    finally:
        stream.close()
    raise ServiceUnavailable("no token was generated: the request was aborted")
