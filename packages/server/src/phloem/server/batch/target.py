"""Where a batch's requests go: to an engine that is started for them, or to a running server.

Either is an `httpx.AsyncClient` whose base URL ends with `/v1`, so that a batch sees no difference.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import asdict, dataclass

import httpx

from phloem.server.http import create_app
from phloem.server.in_process import InProcessTransport
from phloem.server.launch import launched
from phloem.server.located_model import LocatedModel
from phloem.server.openai_wire import api_base

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
        ValueError: `url` is no HTTP address.
    """
    async with httpx.AsyncClient(
        base_url=api_base(url),
        headers={"Authorization": f"Bearer {api_key}"} if api_key else None,
        # An answer may take its time; only the way to the server may not.
        timeout=httpx.Timeout(None, connect=_CONNECT_SECONDS),
        limits=httpx.Limits(max_connections=None),
    ) as http:
        yield Target(http)


@asynccontextmanager
async def local(model: LocatedModel, name: str | None) -> AsyncIterator[Target]:
    """The same app as `phloem serve` has, over an engine that ends with the batch.

    Raises:
        ValueError: the options do not fit the model or the machine.
        StartupError: the engine could not be started.
    """
    async with launched(model, "warning") as engine:
        app = create_app(
            engine.manager,
            served_model_name=name or model.name,
            options=asdict(model.args),
        )
        transport = InProcessTransport(app)
        async with httpx.AsyncClient(
            transport=transport, base_url="http://batch/v1", timeout=None
        ) as http:
            yield Target(http, engine.died)
