"""An engine that is started for a batch, as what its requests go to."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict

import httpx

from phloem.server.batch.run import ServerGone
from phloem.server.batch.target import Target
from phloem.server.http import create_app
from phloem.server.in_process import InProcessTransport
from phloem.server.launch import StartupError, launched
from phloem.server.located_model import LocatedModel


@asynccontextmanager
async def local(model: LocatedModel, name: str | None) -> AsyncIterator[Target]:
    """The same app as `phloem serve` has, over an engine that ends with the batch.

    Raises:
        ValueError: the options do not fit the model or the machine.
        ServerGone: the engine could not be started.
    """
    async with AsyncExitStack() as stack:
        try:
            engine = await stack.enter_async_context(launched(model, "warning"))
        except StartupError as error:
            raise ServerGone(str(error)) from error
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
