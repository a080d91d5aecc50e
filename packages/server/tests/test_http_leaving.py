"""Work that ends with its client."""

from __future__ import annotations

import asyncio

import pytest

from phloem.server.http.leaving import ClientLeft, until_left


async def never():
    await asyncio.Event().wait()


def test_work_is_cancelled_when_the_client_leaves():
    ended = []

    async def work():
        try:
            await never()
        finally:
            ended.append(True)

    messages = [{"type": "http.request"}, {"type": "http.disconnect"}]

    async def receive():
        await asyncio.sleep(0)
        return messages.pop(0)

    with pytest.raises(ClientLeft):
        asyncio.run(until_left(receive, work()))
    assert ended == [True]


def test_what_it_comes_to_is_passed_on_and_nobody_listens_any_more():
    async def result():
        return 7

    async def failure():
        raise ZeroDivisionError

    async def both():
        assert await until_left(never, result()) == 7
        with pytest.raises(ZeroDivisionError):
            await until_left(never, failure())
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(both())
