"""An app in this process behind an HTTP client."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from phloem.server.in_process import InProcessTransport


def client(app):
    return httpx.AsyncClient(transport=InProcessTransport(app), base_url="http://here")


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 20))


def start(status=200):
    return {"type": "http.response.start", "status": status, "headers": [(b"x-one", b"1")]}


def body(data, more=True):
    return {"type": "http.response.body", "body": data, "more_body": more}


def test_the_app_sees_the_request_and_the_client_its_answer():
    async def app(scope, receive, send):
        message = await receive()
        told = [scope["method"], scope["path"], scope["query_string"].decode()]
        told.append(dict(scope["headers"])[b"x-two"].decode())
        await send(start(201))
        await send(body(" ".join(told).encode() + message["body"], more=False))
        assert (await receive())["type"] == "http.disconnect"

    async def ask():
        async with client(app) as http:
            return await http.post("/a/b?c=d", content=b"!", headers={"X-Two": "2"})

    answer = run(ask())
    assert (answer.status_code, answer.headers["x-one"]) == (201, "1")
    assert answer.text == "POST /a/b c=d 2!"


def test_parts_come_as_they_are_sent():
    read = asyncio.Event()

    async def app(scope, receive, send):
        await send(start())
        await send(body(b"a"))
        await read.wait()
        await send(body(b"b", more=False))

    async def ask():
        async with client(app) as http, http.stream("GET", "/") as answer:
            parts = answer.aiter_raw()
            first = await anext(parts)
            read.set()
            return first, await anext(parts)

    assert run(ask()) == (b"a", b"b")


def test_a_client_that_leaves_ends_the_app():
    ended = []

    async def app(scope, receive, send):
        try:
            await send(start())
            await send(body(b"a"))
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    async def ask():
        async with client(app) as http, http.stream("GET", "/") as answer:
            await anext(answer.aiter_raw())
        return list(ended)

    assert run(ask()) == [True]


def test_a_client_that_is_cancelled_before_the_answer_ends_the_app():
    begun, ended = asyncio.Event(), []

    async def app(scope, receive, send):
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    async def ask():
        async with client(app) as http:
            task = asyncio.ensure_future(http.get("/"))
            await begun.wait()
            task.cancel()
            await asyncio.wait([task])
            return task.cancelled(), list(ended)

    assert run(ask()) == (True, [True])


@pytest.mark.parametrize("messages", [[], [start()], [start(), body(b"a")]])
def test_an_app_that_fails_cuts_its_answer_off(messages):
    async def app(scope, receive, send):
        for message in messages:
            await send(message)
        raise OSError("no")

    async def ask():
        async with client(app) as http:
            await http.get("/")

    with pytest.raises(httpx.ReadError, match="cut off"):
        run(ask())


def test_an_app_waits_for_a_client_that_reads_slowly():
    sent = []

    async def app(scope, receive, send):
        await send(start())
        for number in range(1000):
            await send(body(b"x"))
            sent.append(number)
        await send(body(b"", more=False))

    async def ask():
        async with client(app) as http, http.stream("GET", "/") as answer:
            for _ in range(50):
                await asyncio.sleep(0)
            waiting = len(sent)
            return waiting, len(await answer.aread())

    waiting, length = run(ask())
    assert waiting < 100
    assert length == 1000
