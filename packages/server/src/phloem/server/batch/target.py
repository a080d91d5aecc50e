"""Where a batch's requests go: an `httpx.AsyncClient` whose base URL ends with `/v1`.

A running server is one; `phloem.server.batch.engine` has the other.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

import httpx

from phloem.server.openai_wire import api_base, bearer

_CONNECT_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Target:
    """What answers requests."""

    http: httpx.AsyncClient
    died: asyncio.Future[str] | None = None
    """Done when the engine is dead, with a sentence that says so; None: it is not ours."""


AnyTarget = AbstractAsyncContextManager[Target]


@asynccontextmanager
async def remote(url: str, api_key: str | None) -> AsyncIterator[Target]:
    """The server at `url`.

    Raises:
        ValueError: `url` is no HTTP address, or `api_key` cannot be sent.
    """
    headers = bearer(api_key)
    async with httpx.AsyncClient(
        base_url=api_base(url),
        headers=headers,
        # An answer may take its time; only the way to the server may not.
        timeout=httpx.Timeout(None, connect=_CONNECT_SECONDS),
        limits=httpx.Limits(max_connections=None),
    ) as http:
        yield Target(http)
