"""The typed client, against servers that answer as they are told."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager

import httpx
import pytest

from phloem.server.client import (
    NO_RETRIES,
    AsyncClient,
    Finish,
    FunctionCall,
    RequestFailed,
    Retries,
    TokenLogprob,
)

META = {"id": "r", "prompt_tokens": 3, "completion_tokens": 1, "cached_tokens": 2, "retractions": 0}


def meta(finish=None, **more):
    return META | {"finish_reason": finish, **more}


def events(*contents, done=True):
    lines = [f"data: {json.dumps(content)}\n\n" for content in contents]
    return "".join(lines + ["data: [DONE]\n\n"] * done)


class Server(httpx.AsyncBaseTransport):
    """Gives its answers one after the other, and remembers what it was asked."""

    def __init__(self, *answers):
        self.asked = []
        self._answers = list(answers)

    async def handle_async_request(self, request):
        self.asked.append((request, json.loads(request.content or b"null")))
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


@asynccontextmanager
async def client_of(server, **options):
    async with AsyncClient("http://server", transport=server, **options) as client:
        yield client


def ask(server, call, **options):
    async def run():
        async with client_of(server, **options) as client:
            return await call(client)

    return asyncio.run(run())


def collect(stream_of):
    async def call(client):
        async with stream_of(client) as parts:
            return [part async for part in parts]

    return call


def test_a_result_has_its_text_its_counts_and_its_logprobs():
    said = {
        "text": "a",
        "output_ids": [66],
        "meta_info": meta(
            {"type": "stop", "matched": "!"},
            timings={"queue": 0.5, "decode": None},
            output_token_logprobs=[[-0.5, 66]],
            output_top_logprobs=[[[-0.5, 66], [-1.5, 67]]],
            input_token_logprobs=[[None, 1], [-2.0, 2]],
            input_top_logprobs=[None, [[-2.0, 2]]],
        ),
        "unknown": 1,
    }
    server = Server(httpx.Response(200, json=said))
    result = ask(server, lambda c: c.generate("x", {"seed": 1}, rid="r", tenant=None), api_key="k")
    request, body = server.asked[0]
    assert request.url.path == "/generate"
    assert request.headers["authorization"] == "Bearer k"
    assert body == {"text": "x", "sampling_params": {"seed": 1}, "rid": "r"}
    assert (result.text, result.token_ids, result.request_id) == ("a", [66], "r")
    assert result.finish == Finish("stop", "!")
    assert result.timings == {"queue": 0.5}
    assert result.logprobs == [TokenLogprob(66, -0.5, [(66, -0.5), (67, -1.5)])]
    assert result.prompt_logprobs == [TokenLogprob(1, None, []), TokenLogprob(2, -2.0, [(2, -2.0)])]


def test_one_prompt_is_given_as_text_or_as_ids():
    server = Server(httpx.Response(200, json={"text": "", "output_ids": [], "meta_info": meta()}))
    ask(server, lambda c: c.generate(input_ids=(1, 2)))
    assert server.asked[0][1] == {"input_ids": [1, 2]}
    with pytest.raises(ValueError, match="give either"):
        ask(server, lambda c: c.generate("a", input_ids=[1]))


def test_a_stream_is_its_parts():
    parts = [{"text": t, "output_ids": [1], "meta_info": meta()} for t in "ab"]
    last = {"text": "", "output_ids": [], "meta_info": meta({"type": "length"})}
    server = Server(httpx.Response(200, text=events(*parts, last)))
    results = ask(server, collect(lambda c: c.stream("x")))
    assert [r.text for r in results] == ["a", "b", ""]
    assert [r.finish for r in results] == [None, None, Finish("length")]
    assert server.asked[0][1] == {"text": "x", "stream": True}


@pytest.mark.parametrize(
    ("text", "status", "says"),
    [
        (events({"error": {"message": "no", "code": "timeout"}}, done=False), 408, "no"),
        (events({"error": {"message": "no", "code": "internal"}}, done=False), 500, "no"),
        (events({"text": "a"}, done=False), None, "ended before it was complete"),
        ("data: <html>\n\n", None, "no event"),
    ],
)
def test_a_stream_that_breaks_off_is_an_error_and_is_not_sent_again(text, status, says):
    server = Server(httpx.Response(200, text=text))
    with pytest.raises(RequestFailed, match=says) as caught:
        ask(server, collect(lambda c: c.stream("x")))
    assert caught.value.status == status


def refusal(status, message="no", retry_after=None, **fields):
    headers = {} if retry_after is None else {"Retry-After": retry_after}
    return httpx.Response(status, json={"error": {"message": message, **fields}}, headers=headers)


def test_an_error_has_what_the_server_says():
    server = Server(refusal(400, "n is 0", code="invalid", param="n"))
    with pytest.raises(RequestFailed, match="n is 0") as caught:
        ask(server, lambda c: c.generate("x"))
    error = caught.value
    assert (error.status, error.code, error.param, error.retry_after) == (400, "invalid", "n", None)


GOOD = {"text": "a", "output_ids": [1], "meta_info": meta({"type": "stop"})}


class Naps:
    """Sleeps that take no time."""

    def __init__(self):
        self.seconds = []

    async def __call__(self, seconds):
        self.seconds.append(seconds)


def patient(naps, **options):
    return {"retries": Retries(sleep=naps, **options)}


@pytest.mark.parametrize("streamed", [False, True])
def test_what_is_refused_for_now_is_sent_again_after_the_servers_time(streamed):
    naps = Naps()
    good = httpx.Response(200, text=events(GOOD)) if streamed else httpx.Response(200, json=GOOD)
    server = Server(refusal(503, retry_after="7"), refusal(429, retry_after="3"), good)
    call = collect(lambda c: c.stream("x")) if streamed else lambda c: c.generate("x")
    result = ask(server, call, **patient(naps))
    assert (result[0] if streamed else result).text == "a"
    assert naps.seconds == [7.0, 3.0]
    assert len({request.content for request, _ in server.asked}) == 1


def test_without_a_time_the_wait_doubles_and_ends():
    naps = Naps()
    date = "Wed, 21 Oct 2026 07:28:00 GMT"
    server = Server(refusal(503), refusal(503, retry_after=date), httpx.ConnectError("gone"))
    with pytest.raises(RequestFailed, match="the connection failed: gone") as caught:
        ask(server, lambda c: c.generate("x"), **patient(naps, attempts=3, first_wait=4.0))
    assert caught.value.unsent
    assert 2 <= naps.seconds[0] <= 4
    assert 4 <= naps.seconds[1] <= 8
    assert len(naps.seconds) == 2


@pytest.mark.parametrize(
    "answer",
    [
        refusal(400),
        refusal(500),
        refusal(408),
        refusal(503, retry_after="1000"),
        httpx.ReadError("cut"),
    ],
)
def test_what_may_have_run_or_would_take_too_long_is_sent_once(answer):
    naps = Naps()
    with pytest.raises(RequestFailed):
        ask(Server(answer), lambda c: c.generate("x"), **patient(naps))
    assert naps.seconds == []


def test_a_chat_has_its_text_its_reasoning_and_its_calls():
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    message = {"role": "assistant", "content": "hi", "reasoning_content": "hm"}
    choice = {"index": 0, "message": message | {"tool_calls": [call]}, "finish_reason": "stop"}
    usage = {"prompt_tokens": 4, "completion_tokens": 2, "total_tokens": 6}
    server = Server(
        httpx.Response(200, json={"id": "chatcmpl-1", "choices": [choice], "usage": usage})
    )
    answer = ask(server, lambda c: c.chat([{"role": "user", "content": "x"}], temperature=0))
    assert server.asked[0][1] == {
        "messages": [{"role": "user", "content": "x"}],
        "temperature": 0,
    }
    assert (answer.text, answer.reasoning, answer.finish_reason) == ("hi", "hm", "stop")
    assert answer.tool_calls == [FunctionCall(0, "c1", "f", "{}")]
    assert (answer.prompt_tokens, answer.cached_tokens) == (4, None)


def test_a_streamed_chat_ends_with_its_counts():
    def delta(**fields):
        return {"id": "i", "choices": [{"index": 0, "delta": fields, "finish_reason": None}]}

    call = {"index": 1, "id": "c", "function": {"name": "f", "arguments": ""}}
    parts = [delta(role="assistant"), delta(content="a"), delta(tool_calls=[call])]
    usage = {"id": "i", "choices": [], "usage": {"prompt_tokens": 4, "completion_tokens": 1}}
    server = Server(httpx.Response(200, text=events(*parts, usage)))
    answers = ask(server, collect(lambda c: c.stream_chat([])))
    assert [a.text for a in answers] == ["", "a", "", ""]
    assert answers[2].tool_calls == [FunctionCall(1, "c", "f", "")]
    assert [a.completion_tokens for a in answers] == [None, None, None, 1]
    assert server.asked[0][1]["stream_options"] == {"include_usage": True}


def test_health_is_told_and_never_raised():
    server = Server(
        httpx.Response(200, json={"status": "ok"}), refusal(503), httpx.ConnectError("gone")
    )

    async def call(client):
        return [await client.health() for _ in range(3)]

    healths = ask(server, call)
    assert [h.ready for h in healths] == [True, False, False]
    assert healths[1].message == "no"


def test_vectors_aborts_and_the_model_are_read():
    embedding = {"data": [{"embedding": "AACAPwAAAMA="}], "usage": {"prompt_tokens": 5}}
    server = Server(
        httpx.Response(200, json=embedding),
        httpx.Response(200, json={"aborted": 2}),
        httpx.Response(200, json={"data": [{"id": "m", "max_model_len": 9}]}),
    )

    async def call(client):
        return await client.embed(["a"]), await client.abort("r"), await client.info()

    vectors, aborted, info = ask(server, call, retries=NO_RETRIES)
    assert (vectors.embeddings, vectors.prompt_tokens) == ([[1.0, -2.0]], 5)
    assert aborted == 2
    assert (info.model, info.context_length) == ("m", 9)


@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.generate("x", {"n": 2}),
        lambda client: client.chat([], n=2),
        lambda client: anext(aiter(client.stream("x", {"n": 2}))),
        lambda client: anext(aiter(client.stream_chat([], n=2))),
    ],
)
def test_more_than_one_output_is_refused_before_it_is_sent(call):
    server = Server()
    with pytest.raises(ValueError, match="n is 2, and a result here is one output"):
        ask(server, lambda client: call(client))
    assert server.asked == []


def test_a_key_that_no_header_can_have_is_refused():
    with pytest.raises(ValueError, match="other than printable ASCII"):
        AsyncClient("http://server", api_key="schl\u00fcssel")
