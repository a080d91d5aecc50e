from __future__ import annotations

import asyncio
import json
import re
from contextlib import asynccontextmanager

import pytest

from phloem.server.bench.client import LoadClient, Target, request_body
from phloem.server.bench.runner import run_all, run_workload, warm_up
from phloem.server.bench.workloads import Conversation, TextMaker, Workload
from phloem.server.streamed_answer import Answer

ONE = Conversation(("hi",), 4)
TARGET = Target("http://127.0.0.1:1/v1", "m")


def encode(text):
    return text.split()


def event(**fields):
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def piece(text, finish=None):
    return event(choices=[{"index": 0, "text": text, "finish_reason": finish}])


USAGE = event(choices=[], usage={"prompt_tokens": 5, "completion_tokens": 2})


# What is sent.


def test_a_request_is_greedy_streamed_and_of_full_length():
    path, body = request_body(TARGET, encode, "a b", ONE)
    assert path == "/completions"
    assert body == {
        "model": "m",
        "prompt": "a b",
        "max_tokens": 4,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
    }


@pytest.mark.parametrize(
    ("options", "path", "fields"),
    [
        ({"ids": True}, "/completions", {"prompt": ["a", "b"]}),
        ({"chat": True}, "/chat/completions", {"messages": [{"role": "user", "content": "a b"}]}),
        ({"min_tokens": True}, "/completions", {"ignore_eos": True, "min_tokens": 4}),
        ({"extra": {"top_k": 1, "temperature": 1}}, "/completions", {"top_k": 1, "temperature": 1}),
    ],
)
def test_options_change_what_is_sent(options, path, fields):
    sent_to, body = request_body(Target("http://h/v1", "m", **options), encode, "a b", ONE)
    assert (sent_to, body | fields) == (path, body)


def test_without_ignore_eos_nothing_is_said_of_the_length():
    target = Target("http://h/v1", "m", ignore_eos=False, min_tokens=True)
    _, body = request_body(target, encode, "a b", ONE)
    assert not {"ignore_eos", "min_tokens"} & set(body)


def test_a_schema_is_asked_of_a_chat_that_may_end():
    conversation = Conversation(("a",), 4, schema={"type": "object"})
    path, body = request_body(TARGET, encode, "a", conversation)
    assert path == "/chat/completions"
    assert body["response_format"]["json_schema"]["schema"] == {"type": "object"}
    assert "ignore_eos" not in body


# What comes back, from a server that answers as it is told.


@asynccontextmanager
async def serving(*parts, status="200 OK", hang=False):
    """A server that sends `parts` to everyone, and the list of what it was sent."""
    asked = []

    async def answer(reader, writer):
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = int(head.lower().split("content-length: ")[1].split("\r\n")[0])
        asked.append((head, json.loads(await reader.readexactly(length))))
        writer.write(f"HTTP/1.1 {status}\r\nConnection: close\r\n\r\n".encode())
        for part in parts:
            writer.write(part)
            await writer.drain()
        if hang:
            await reader.read()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", asked
    finally:
        server.close()


def ask(*parts, api_key=None, timeout=30.0, **server):
    async def run():
        async with serving(*parts, **server) as (url, asked):
            target = Target(url, "m", api_key, timeout_s=timeout)
            async with LoadClient.open(target, encode) as client:
                return await client.ask("a b c", ONE), asked

    return asyncio.run(run())


def test_an_answer_is_taken_from_its_stream():
    answer, asked = ask(piece("one "), piece("two", "length"), USAGE, b"data: [DONE]\n\n")
    assert (answer.text, answer.finish_reason, answer.error) == ("one two", "length", None)
    assert (answer.prompt_tokens, answer.completion_tokens) == (5, 2)
    assert 0 <= answer.arrivals[0] <= answer.arrivals[-1] <= answer.ended
    head, body = asked[0]
    assert head.startswith("POST /v1/completions ")
    assert body["prompt"] == "a b c"


def test_tokens_are_counted_here_where_the_server_does_not():
    answer, _ = ask(piece("one two three", "stop"))
    assert (answer.prompt_tokens, answer.completion_tokens) == (3, 3)


def test_a_key_is_sent_along():
    _, asked = ask(piece("x", "stop"), api_key="secret")
    assert "Authorization: Bearer secret" in asked[0][0]


@pytest.mark.parametrize(
    ("parts", "server", "says"),
    [
        ([b'{"error": {"message": "no grammar"}}'], {"status": "400 Bad"}, "no grammar (HTTP stat"),
        ([piece("a"), event(error={"message": "NaN"})], {}, "NaN"),
        ([piece("a")], {}, "without a finish reason"),
        ([piece("", "stop")], {}, "the answer has no text"),
        ([piece("a")], {"hang": True, "timeout": 0.05}, "no end of the answer within 0.05 s"),
    ],
)
def test_a_request_that_fails_is_a_result_that_says_why(parts, server, says):
    answer, _ = ask(*parts, **server)
    assert says in answer.error


def test_a_server_that_is_not_there_is_a_result_too():
    async def run():
        async with serving() as (url, _):
            pass
        async with LoadClient.open(Target(url, "m"), encode) as client:
            return await client.ask("a", ONE)

    assert "the connection failed" in asyncio.run(run()).error


# How workloads are run.


class Scripted:
    """Answers `<n>`; notes the prompts and how many requests were here at once."""

    def __init__(self, error=None):
        self.prompts = []
        self.most = self._now = 0
        self._error = error

    async def ask(self, prompt, conversation):
        self.prompts.append(prompt)
        number = len(self.prompts)
        self._now += 1
        self.most = max(self.most, self._now)
        for _ in range(3):
            await asyncio.sleep(0)
        self._now -= 1
        return Answer(f"<{number}>", (1.0,), 1.0, 1, 1, error=self._error)


def test_no_more_requests_than_allowed_are_on_their_way_and_never_fewer():
    client = Scripted()
    workload = Workload("w", 3, tuple(Conversation((str(i),), 1) for i in range(10)))
    answers, _ = asyncio.run(run_workload(client, workload))
    assert (client.most, len(answers)) == (3, 10)
    assert client.prompts == [str(i) for i in range(10)]


def test_a_turn_is_asked_with_all_that_was_said_before():
    client = Scripted()
    workload = Workload("w", 1, (Conversation((" a", " b", " c"), 1),))
    asyncio.run(run_workload(client, workload))
    assert client.prompts == [" a", " a<1> b", " a<1> b<2> c"]


def test_the_time_of_a_run_is_from_its_first_request_to_its_last_answer():
    times = iter([10.0, 12.5])
    workload = Workload("w", 1, (ONE,))
    _, seconds = asyncio.run(run_workload(Scripted(), workload, lambda: next(times)))
    assert seconds == 2.5


def test_runs_are_gathered_by_name_and_a_workload_may_run_again():
    told = []
    workloads = [Workload("a", 1, (ONE,), again="awarm")] * 2 + [Workload("b", 1, (ONE,))]
    run = run_all(Scripted(), workloads, lambda name, number, _: told.append((name, number)))
    figures = asyncio.run(run)
    assert {name: len(runs) for name, runs in figures.items()} == {"a": 2, "awarm": 2, "b": 1}
    assert told == [("a", 1), ("awarm", 1), ("a", 2), ("awarm", 2), ("b", 1)]


def test_a_warm_up_that_nobody_answers_ends_it_all():
    def words(text):
        return re.findall(r" ?\w+|[^\w ]", text)

    client = Scripted(error="connection refused")
    with pytest.raises(RuntimeError, match="no request of the warm-up: connection refused"):
        asyncio.run(warm_up(client, TextMaker(words, 0)))
