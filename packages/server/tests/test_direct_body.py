"""The short way of a stream's body to its connection, and who closes it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from phloem.server.direct_body import offer, writer_of
from phloem.server.observability.excerpts import Excerpts
from phloem.server.observability.watch import watching


def cycle(**state):
    """What Uvicorn has of an answer that has begun and has no length."""
    written = []
    known = {"disconnected": False, "chunked_encoding": True, **state}
    return SimpleNamespace(
        **{"flow": SimpleNamespace(write_paused=False), **known},
        transport=SimpleNamespace(write=written.append),
        written=written,
    )


def offered(of):
    scope = {"type": "http", "headers": []}
    offer(scope, of)
    return scope


def test_a_part_is_written_as_a_chunk_of_the_body():
    of = cycle()
    assert writer_of(offered(of))(b"data: 1234567\n\n\n") is True
    assert of.written == [b"10\r\ndata: 1234567\n\n\n\r\n"]


@pytest.mark.parametrize(
    "state",
    [
        {"flow": SimpleNamespace(write_paused=True)},
        {"disconnected": True},
        {"chunked_encoding": False},
        {"chunked_encoding": None},
    ],
    ids=["the client does not read", "it has left", "a length", "not begun"],
)
def test_a_part_is_left_to_the_way_that_waits(state):
    of = cycle(**state)
    assert writer_of(offered(of))(b"part") is False
    assert of.written == []


def test_without_an_offer_there_is_none():
    assert writer_of({"type": "http"}) is None


def test_a_layer_that_keeps_texts_sees_all_of_a_body():
    scope = offered(cycle())
    found = []

    async def app(scope, receive, send):
        found.append(writer_of(scope))
        await send({"type": "http.response.body", "body": b"all of it"})

    async def nothing(message=None):
        return {"type": "http.request", "body": b""}

    async def run():
        with watching(scope, []) as watch:
            await Excerpts(app)(scope, nothing, nothing)
            return watch.texts["response"]

    assert asyncio.run(run()) == "all of it"
    assert found == [None]
