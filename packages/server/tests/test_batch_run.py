"""A batch over servers that answer as they are told."""

from __future__ import annotations

import asyncio
import errno
import json
from contextlib import closing

import httpx
import pytest

from phloem.server.batch import output as output_module
from phloem.server.batch.lines import BadLine, RequestLine
from phloem.server.batch.output import OutputFile
from phloem.server.batch.run import BatchRun, ServerGone, WrongServer, again, unless
from phloem.server.client.retry import Retries


class Server(httpx.AsyncBaseTransport):
    """Answers by the request's prompt, and counts who waits."""

    def __init__(self, answers=None):
        self.asked = []
        self.most = 0
        self._answers = answers or {}
        self._waiting = 0

    async def handle_async_request(self, request):
        prompt = json.loads(request.content)["prompt"]
        self.asked.append((request.url.path, prompt))
        self._waiting += 1
        self.most = max(self.most, self._waiting)
        await asyncio.sleep(0)
        self._waiting -= 1
        answers = self._answers.get(prompt)
        answer = answers.pop(0) if answers else httpx.Response(200, json=body(prompt))
        if isinstance(answer, Exception):
            raise answer
        return answer


def body(text):
    return {"choices": [{"text": text}], "usage": {"completion_tokens": 2}}


def request(number, text=None):
    content = json.dumps({"prompt": text or str(number)}).encode()
    return RequestLine(number, f"id-{number}", "/v1/completions", content)


async def no_wait(seconds):
    await asyncio.sleep(0)


PATIENT = Retries(attempts=3, safe=again, sleep=no_wait)


def run(path, server, lines, concurrency=4):
    """The run and the results in the file."""
    keys = {line.key: line.result_id for line in lines}

    async def answer():
        with closing(OutputFile(path, keys, 1.0)) as output:
            async with httpx.AsyncClient(transport=server, base_url="http://x/v1") as http:
                batch = BatchRun(http, output, concurrency=concurrency, retries=PATIENT)
                await batch.run(iter(lines))
                return batch

    return asyncio.run(answer()), results(path)


def results(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "out"


def test_each_line_has_its_answer_and_no_more_are_asked_at_once_than_allowed(path):
    server = Server()
    batch, got = run(path, server, [request(i) for i in range(1, 41)], concurrency=4)
    assert server.most == 4
    assert len(server.asked) == 40
    assert {url for url, _ in server.asked} == {"/v1/completions"}
    assert {r["custom_id"]: r["response"]["body"] for r in got} == {
        f"id-{i}": body(str(i)) for i in range(1, 41)
    }
    assert all(r["error"] is None and r["response"]["status_code"] == 200 for r in got)
    assert len({r["id"] for r in got}) == 40
    assert batch.completion_tokens == 80


def test_what_has_a_result_is_not_asked_again(path):
    lines = [request(i) for i in range(1, 5)]
    run(path, Server(), lines[:2] + lines[3:])
    server = Server()
    _, got = run(path, server, lines)
    assert server.asked == [("/v1/completions", "3")]
    assert sorted(r["custom_id"] for r in got) == ["id-1", "id-2", "id-3", "id-4"]


def test_a_refusal_is_a_result_and_a_bad_line_is_an_error(path):
    refused = httpx.Response(400, json={"error": {"message": "no"}}, headers={"x-request-id": "r"})
    lines = [request(1), BadLine(2, None, "line 2 is no JSON object"), BadLine(3, "c", "no url")]
    server = Server({"1": [refused]})
    _, got = run(path, server, lines, concurrency=1)
    answer, nameless, named = got
    assert answer["response"] == {
        "status_code": 400,
        "request_id": "r",
        "body": {"error": {"message": "no"}},
    }
    assert (nameless["custom_id"], nameless["response"]) == (None, None)
    assert nameless["error"] == {
        "code": "invalid_line",
        "message": "line 2 is no JSON object",
        "line": 2,
    }
    assert named["custom_id"] == "c"
    again_server = Server()
    assert run(path, again_server, lines)[1] == got
    assert again_server.asked == []


def test_an_answer_in_several_lines_or_none_of_json_is_one_line(path):
    pretty = httpx.Response(200, text=json.dumps(body("é"), indent=1))
    server = Server({"1": [pretty], "2": [httpx.Response(500, text="<h1>no\n</h1>")]})
    _, got = run(path, server, [request(1), request(2)], concurrency=1)
    assert [r["response"]["body"] for r in got] == [body("é"), "<h1>no\n</h1>"]


def busy(status=503):
    return httpx.Response(status, json={"error": {"message": "full"}})


def test_a_busy_server_is_asked_again(path):
    server = Server({"1": [busy(), httpx.ReadError("cut")], "2": [busy(429), busy(502)]})
    _, got = run(path, server, [request(1), request(2)])
    assert [r["response"]["status_code"] for r in got] == [200, 200]
    assert len(server.asked) == 6


def test_what_stays_refused_has_no_result_and_the_others_go_on(path):
    server = Server({"2": [busy()] * 3})
    batch, got = run(path, server, [request(i) for i in range(1, 9)], concurrency=2)
    assert batch.unanswered == ["line 2: full"]
    assert len(got) == 7
    _, after = run(path, Server(), [request(i) for i in range(1, 9)])
    assert len(after) == 8


def test_a_server_that_is_gone_ends_the_run(path):
    server = Server({"2": [httpx.ConnectError("refused")] * 3})
    with pytest.raises(ServerGone, match="the connection failed: refused"):
        run(path, server, [request(i) for i in range(1, 100)], concurrency=1)
    assert [r["custom_id"] for r in results(path)] == ["id-1"]


def test_a_full_disk_ends_the_run_and_the_next_one_repairs_it(path, monkeypatch):
    lines = [request(i) for i in range(1, 9)]
    write, room = output_module._write, [400]

    def until_full(fd, data):
        write(fd, data[: room[0]])
        if len(data) > room[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        room[0] -= len(data)

    monkeypatch.setattr(output_module, "_write", until_full)
    with pytest.raises(OSError, match="No space left"):
        run(path, Server(), lines)
    assert len(path.read_bytes()) == 400
    monkeypatch.undo()
    _, got = run(path, Server(), lines)
    assert sorted(r["custom_id"] for r in got) == [f"id-{i}" for i in range(1, 9)]


def test_an_engine_that_dies_ends_what_waits_for_it():
    ended = []

    async def work():
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    async def both():
        died = asyncio.get_running_loop().create_future()
        task = asyncio.ensure_future(unless(died, work()))
        await asyncio.sleep(0)
        died.set_result("the scheduler died")
        await task

    with pytest.raises(ServerGone, match="the scheduler died"):
        asyncio.run(both())
    assert ended == [True]


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (httpx.Response(401, json={"error": {"message": "no key"}}), r"the key \(401: no key\)"),
        (httpx.Response(403, json={"error": {"message": "not you"}}), r"the key \(403: not you\)"),
        (httpx.Response(404, json={"detail": "Not Found"}), "the server has no /v1/completions"),
        (httpx.Response(404, text="<h1>nginx</h1>"), "the server has no /v1/completions"),
        (
            httpx.Response(404, json={"error": {"message": "no", "code": "not_found"}}),
            "the server has no /v1/completions",
        ),
        (httpx.Response(405, text=""), "the server has no /v1/completions"),
        (httpx.Response(301, headers={"location": "https://x"}), "answers 301 with no JSON"),
        (httpx.Response(200, text="<h1>sign in</h1>"), "answers 200 with no JSON"),
    ],
)
def test_a_wrong_key_or_address_ends_the_run_and_gives_no_results(path, answer, says):
    lines = [request(i) for i in range(1, 50)]
    with pytest.raises(WrongServer, match=says):
        run(path, Server({"2": [answer]}), lines, concurrency=1)
    assert [r["custom_id"] for r in results(path)] == ["id-1"]
    assert len(run(path, Server(), lines)[1]) == 49


def test_a_model_that_is_not_there_is_a_result(path):
    error = {"message": "no such model", "param": "model", "code": "model_not_found"}
    _, got = run(path, Server({"1": [httpx.Response(404, json={"error": error})]}), [request(1)])
    assert got[0]["response"]["body"] == {"error": error}


@pytest.mark.parametrize(
    ("usage", "tokens"),
    [
        ({"output_tokens": 3}, 3),
        ({"completion_tokens": "7"}, 0),
        ({"completion_tokens": 1.5}, 0),
        ([1], 0),
        (None, 0),
    ],
)
def test_counts_of_any_kind_leave_the_answer_as_it_is(path, usage, tokens):
    answer = {"choices": [], "usage": usage}
    batch, got = run(path, Server({"1": [httpx.Response(200, json=answer)]}), [request(1)])
    assert (got[0]["response"]["body"], batch.completion_tokens) == (answer, tokens)


def test_a_line_that_was_mended_is_asked(path):
    broken = [BadLine(1, None, "line 1 is no JSON object"), BadLine(2, "id-2", "line 2: no url")]
    run(path, Server(), broken)
    _, got = run(path, Server(), [request(1), request(2)])
    assert [(r["custom_id"], r["response"]["status_code"]) for r in got] == [
        ("id-1", 200),
        ("id-2", 200),
    ]


def test_results_of_another_request_of_the_name_are_refused(path):
    run(path, Server(), [request(1, "a question")])
    with pytest.raises(ValueError, match="answers another request of custom_id 'id-1'"):
        run(path, Server(), [request(1, "another question")])
