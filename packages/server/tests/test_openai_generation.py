"""How an answer and its sequences end together, over an engine that pretends."""

from __future__ import annotations

import asyncio
import json

import pytest

from phloem.scheduler import SamplingParams
from phloem.server.frontend import GenerationRequest, ServiceUnavailable
from phloem.server.http.errors import ApiError
from phloem.server.http.generation import Answer, Generation
from phloem.server.http.metrics import Metrics
from phloem.server.http.sse import EventStream
from phloem.server.messages import Finish, TextNews


class Together(str):
    """A text that is there with the one before it."""


class Script:
    """The news of one sequence: texts, an exception to raise, or None to wait for ever."""

    def __init__(self, rid, steps):
        self.rid, self.steps, self.closed = rid, list(steps), False

    def __aiter__(self):
        return self

    async def __anext__(self):
        await asyncio.sleep(0)
        if not self.steps:
            raise StopAsyncIteration
        step = self.steps.pop(0)
        if isinstance(step, Exception):
            raise step
        if step is None:
            await asyncio.Event().wait()
        return self._news(step)

    def ready(self):
        together = bool(self.steps) and isinstance(self.steps[0], Together)
        return self._news(self.steps.pop(0)) if together else None

    def _news(self, text):
        finish = None if self.steps else Finish("stop")
        return TextNews(self.rid, str(text), [1], finish, 1, 1, 0)

    def close(self, told=None):
        self.closed = True


class Scripts:
    """A frontend of scripts; it refuses to start a sequence whose script is an exception."""

    def __init__(self, *scripts):
        self.scripts = list(scripts)
        self.started = []

    def start(self, request):
        script = self.scripts[len(self.started)]
        if isinstance(script, Exception):
            raise script
        self.started.append(Script(request.rid, script))
        return self.started[-1]


class Lines:
    """A form that writes `index text` lines."""

    def chunk(self, index, news):
        return f"{index} {news.text}\n".encode()

    def tail(self):
        return b"tail\n"

    def failure(self, error):
        return f"failed: {error}\n".encode()

    def whole(self, outputs):
        return json.dumps([news.text for news in outputs]).encode()


class Client:
    """Takes an answer; leaves after so many messages, if asked."""

    def __init__(self, leaves_after=None):
        self.messages = []
        self._leaves_after = leaves_after
        self._left = asyncio.Event()
        if leaves_after == 0:
            self._left.set()

    async def receive(self):
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message):
        self.messages.append(message)
        if len(self.messages) == self._leaves_after:
            self._left.set()

    @property
    def body(self):
        return b"".join(message.get("body", b"") for message in self.messages).decode()


def answer(frontend, stream, client=None, metrics=None, spent=None, write=None):
    """Send an answer of all scripts; `spent` gets the tokens that they cost, and `write`, if there
    is one, parts of the body at once.
    """
    spent = [] if spent is None else spent
    client = client or Client()
    generation = Generation(frontend, metrics or Metrics())
    requests = [
        GenerationRequest(str(i), [1], SamplingParams()) for i in range(len(frontend.scripts))
    ]

    async def run():
        def work(scope, send):
            what = (requests, Lines(), "prompt", spent.append)
            if stream:
                return generation.send_stream(*what, EventStream(scope, send))
            return generation.send_whole(*what, send)

        scope = {"type": "http", "extensions": {"phloem.body": write} if write else {}}
        await asyncio.wait_for(Answer(work)(scope, client.receive, client.send), 10)

    asyncio.run(run())
    return client


def ended(metrics):
    name = "phloem_num_requests_total"
    return {
        sample.labels["finish_reason"]: sample.value
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.name == name
    }


def test_news_that_are_there_together_go_out_in_one_write_in_their_order():
    client = answer(Scripts(["a", Together("b"), Together("c"), "d"]), stream=True)
    bodies = [message.get("body") for message in client.messages]
    assert bodies == [None, b"0 a\n0 b\n0 c\n", b"0 d\n", b"tail\n", b""]


def test_a_connection_that_takes_parts_at_once_gets_all_but_the_first_and_the_end():
    written = []
    client = answer(Scripts(["a", "b", "c"]), True, write=lambda part: not written.append(part))
    assert written == [b"0 b\n", b"0 c\n", b"tail\n"]
    assert [message.get("body") for message in client.messages] == [None, b"0 a\n", b""]


def test_parts_that_a_connection_does_not_take_go_the_way_that_waits():
    takes = iter([False, True, False])
    written = []

    def write(part):
        taken = next(takes)
        written.extend([part] * taken)
        return taken

    client = answer(Scripts(["a", "b", "c"]), True, write=write)
    assert written == [b"0 c\n"]
    assert client.body == "0 a\n0 b\ntail\n"


def test_a_whole_answer_has_all_outputs_in_their_order():
    client = answer(Scripts(["a", "b", "c"], ["d"]), stream=False)
    assert client.body == '["abc", "d"]'
    assert client.messages[0]["status"] == 200


@pytest.mark.parametrize("stream", [False, True])
def test_tokens_are_paid_for_as_they_come_also_of_answers_that_nobody_waits_for(stream):
    spent = []
    answer(Scripts(["a", "b", "c"], ["d"]), stream, spent=spent)
    assert spent == [1] * 4
    spent.clear()
    answer(Scripts(["a", "b", ApiError("x", 500)]), stream=True, spent=spent)
    assert spent == [1] * 2


def test_a_stream_passes_on_what_comes_and_ends_with_the_mark():
    client = answer(Scripts(["a", "b"]), stream=True)
    assert client.body == "0 a\n0 b\ntail\n"
    assert client.messages[-1] == {"type": "http.response.body", "body": b"", "more_body": False}


def test_all_sequences_of_a_stream_are_passed_on():
    lines = answer(Scripts(["a", "b"], ["c", "d"]), stream=True).body.splitlines()
    assert [line for line in lines if line.startswith("0")] == ["0 a", "0 b"]
    assert [line for line in lines if line.startswith("1")] == ["1 c", "1 d"]


@pytest.mark.parametrize("stream", [False, True])
def test_one_refused_sequence_ends_those_that_had_started(stream):
    frontend = Scripts([None], ValueError("temperature is -1"), ["a"])
    with pytest.raises(ApiError, match="temperature is -1") as caught:
        answer(frontend, stream)
    assert caught.value.param == "temperature"
    assert [script.closed for script in frontend.started] == [True]


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_ends_all_sequences(stream):
    frontend, metrics = Scripts(["a", None], ["b", None]), Metrics()
    client = answer(frontend, stream, Client(leaves_after=2 if stream else 0), metrics)
    assert all(script.closed for script in frontend.started)
    assert "[DONE]" not in client.body
    assert ended(metrics) == {"abort": 2}


@pytest.mark.parametrize("stream", [False, True])
def test_what_fails_before_the_first_news_is_raised(stream):
    frontend, metrics = Scripts([ServiceUnavailable("gone")], [None]), Metrics()
    with pytest.raises(ServiceUnavailable, match="gone"):
        answer(frontend, stream, metrics=metrics)
    assert all(script.closed for script in frontend.started)
    assert ended(metrics) == {"error": 1, "abort": 1}


def test_what_fails_in_mid_stream_is_an_event_without_the_mark():
    client = answer(Scripts(["a", ServiceUnavailable("gone")]), stream=True)
    first, rest = client.body.split("\n", 1)
    assert first == "0 a"
    assert rest == "failed: gone\n"
    assert client.messages[-1]["more_body"] is False


def test_a_mistake_of_the_server_is_not_shown(caplog):
    client = answer(Scripts(["a", RuntimeError("secret")]), stream=True)
    assert "secret" not in client.body
    assert "the server failed on this request" in client.body
    assert "secret" in caplog.text
