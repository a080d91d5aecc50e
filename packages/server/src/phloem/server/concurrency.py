"""Things that a request does side by side, of which none outlives it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

T = TypeVar("T")


async def all_of(work: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """What all come to, in order; when one fails, or the caller is cancelled, the others end too.

    Raises:
        BaseException: what the first that failed raised.
    """
    if len(work) < 2:
        return [await each for each in work]
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
