"""What `/health_generate` asks of an engine, and what it tells of each outcome."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from fastapi import APIRouter, FastAPI

from phloem.scheduler import MOST_URGENT
from phloem.server.frontend import ServiceUnavailable
from phloem.server.http.error_answers import install_handlers
from phloem.server.http.health import add_health
from phloem.server.messages import Finish, Limits, TextNews


class Engine:
    """Answers each request with one finish; None: never."""

    draining = False
    retry_after = None

    def __init__(self, finish, priorities=False):
        self.limits = Limits(100, 100, 300, 1000, priorities)
        self.finish = finish
        self.asked = []
        self.closed = 0

    async def ping(self, timeout):
        pass

    def start(self, request):
        self.asked.append(request)
        return self

    def __aiter__(self):
        return self

    async def __anext__(self):
        if self.finish is None:
            await asyncio.Event().wait()
        return TextNews("r", "x", [1], self.finish, 1, 1, 0)

    def close(self):
        self.closed += 1


def ask(engine, path="/health_generate"):
    app, router = FastAPI(), APIRouter()
    install_handlers(app)
    add_health(router, engine, 0.05)
    app.include_router(router)

    async def run():
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            return await client.get(path)

    return asyncio.run(run())


@pytest.mark.parametrize(("priorities", "priority"), [(True, -MOST_URGENT), (False, 0)])
def test_it_asks_for_one_token_in_a_namespace_of_its_own_behind_all_others(priorities, priority):
    engine = Engine(Finish("length"), priorities)
    assert ask(engine).status_code == 200
    (request,) = engine.asked
    assert request.params.max_new_tokens == 1
    assert (request.namespace, request.priority) == (("health",), priority)
    assert engine.closed == 1


def test_a_token_that_does_not_come_in_time_is_a_503_and_is_not_waited_for():
    engine = Engine(None)
    answer = ask(engine)
    assert answer.status_code == 503
    assert answer.json()["error"]["message"] == "no token was generated within 0.05 s"
    assert engine.closed == 1


@pytest.mark.parametrize(
    ("finish", "sentence", "retry_after"),
    [
        (Finish("refused", None, "too many wait", 503, 2.5), "too many wait", "3"),
        (Finish("error", None, "the logits are NaN", 500), "the logits are NaN", None),
        (Finish("abort"), "abort", None),
    ],
)
def test_any_other_end_is_a_503_that_says_why(finish, sentence, retry_after):
    answer = ask(Engine(finish))
    assert answer.status_code == 503
    assert answer.json()["error"]["message"] == f"no token was generated: {sentence}"
    assert answer.headers.get("retry-after") == retry_after


def test_readiness_and_health_part_while_the_server_drains():
    engine = Engine(None)
    engine.draining, engine.retry_after = True, 7.0
    assert ask(engine, "/health").status_code == ask(engine, "/startup").status_code == 200
    answer = ask(engine, "/ready")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "7")


def test_an_engine_that_has_ended_is_a_503_but_for_the_start():
    engine = Engine(None)

    async def ping(timeout):
        raise ServiceUnavailable("the scheduler process died")

    engine.ping = ping
    for path in ("/health", "/ping", "/ready", "/health_generate"):
        answer = ask(engine, path)
        assert answer.status_code == 503
        assert "died" in answer.json()["error"]["message"]
    assert ask(engine, "/startup").status_code == 200
    assert engine.asked == []
