"""Work for a client, which nobody wants any more once the client has left."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

T = TypeVar("T")


class ClientLeft(Exception):
    """The client has gone, and the work for it has ended."""


async def until_left(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """What `work` comes to; it is cancelled when the client leaves.

    So whatever it runs must end with it. The request's body must have been read.

    Raises:
        ClientLeft: it was cancelled.
    """
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_left(receive))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
    finally:
        leaving.cancel()
        working.cancel()
        await asyncio.wait((working, leaving))
    if working.cancelled():
        raise ClientLeft
    return working.result()


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
