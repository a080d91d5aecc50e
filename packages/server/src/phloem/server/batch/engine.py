"""An engine that is started for a batch, as what its requests go to."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict

import httpx

from phloem.server.batch.run import ServerGone
from phloem.server.batch.target import Target
from phloem.server.http import create_app
from phloem.server.http.chat_setup import chat_options
from phloem.server.http_config import HttpArgs
from phloem.server.in_process import InProcessTransport
from phloem.server.launch import StartupError, launched
from phloem.server.located_model import LocatedModel


@asynccontextmanager
async def local(model: LocatedModel, http: HttpArgs) -> AsyncIterator[Target]:
    """The same app as `phloem serve` has, over an engine that ends with the batch; of `http` what
    concerns answers counts.

    Raises:
        ValueError: the options do not fit the model or the machine.
        ServerGone: the engine could not be started.
    """
    chat = chat_options(http)
    async with AsyncExitStack() as stack:
        try:
            engine = await stack.enter_async_context(launched(model, "warning"))
        except StartupError as error:
            raise ServerGone(str(error)) from error
        app = create_app(
            engine.manager,
            served_model_name=http.served_model_name or model.name,
            chat=chat,
            options=asdict(model.args),
            strict_fields=http.strict_fields,
            max_body_bytes=http.max_request_bytes,
        )
        transport = InProcessTransport(app)
        client = httpx.AsyncClient(transport=transport, base_url="http://batch/v1", timeout=None)
        async with client:
            yield Target(client, engine.died)
