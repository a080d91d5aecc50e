from __future__ import annotations

import json

import httpx
import pytest

from phloem.server.cli.remote import RemoteEngine
from phloem.server.cli.session import failure, figures


class Server(httpx.BaseTransport):
    """Answers as it is told, and remembers what it was asked."""

    def __init__(self, *parts, status=200, models=({"id": "first"}, {"id": "second"})):
        self.asked = []
        self.closed = False
        self._parts = parts
        self._status = status
        self._models = models

    def handle_request(self, request):
        if request.method == "GET":
            return httpx.Response(200, json={"data": list(self._models)})
        self.asked.append((request, json.loads(request.content)))
        return httpx.Response(self._status, stream=Parts(self))


class Parts(httpx.SyncByteStream):
    def __init__(self, server):
        self._server = server

    def __iter__(self):
        for part in self._server._parts:
            if isinstance(part, Exception):
                raise part
            yield part

    def close(self):
        self._server.closed = True


def event(**fields):
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def chat(text, finish=None):
    return event(choices=[{"delta": {"content": text}, "finish_reason": finish}])


USAGE = event(
    choices=[],
    usage={
        "prompt_tokens": 4,
        "completion_tokens": 3,
        "prompt_tokens_details": {"cached_tokens": 2},
    },
)
DONE = b"data: [DONE]\n\n"
MESSAGES = [{"role": "user", "content": "hi"}]


def remote(server, clock=None, **options):
    times = iter(clock or [i / 4 for i in range(100)])
    return RemoteEngine("http://h", transport=server, clock=lambda: next(times), **options)


def test_a_chat_streams_and_ends_with_what_came_of_it():
    server = Server(chat("a"), chat("b", "length"), USAGE + DONE)
    # Sent at 0, then the three parts, then the end.
    *news, last = remote(server, [0.0, 0.5, 1.0, 1.5, 2.0]).chat(MESSAGES, stream=True)
    assert [n["text"] for n in news] == ["a", "b"]
    assert last == {
        "text": "",
        "meta_info": {
            "finish_reason": {"type": "length"},
            "prompt_tokens": 4,
            "completion_tokens": 3,
            "cached_tokens": 2,
            "timings": {"ttft": 0.5, "decode": 0.5, "total": 2.0},
        },
    }
    assert "3 tokens, 4.0 tokens/s" in figures(last["meta_info"])
    assert "2 of 4 prompt tokens cached" in figures(last["meta_info"])
    request, body = server.asked[0]
    assert str(request.url) == "http://h/v1/chat/completions"
    assert (body["messages"], body["model"], body["stream"]) == (MESSAGES, "first", True)


def test_a_whole_answer_is_the_stream_joined():
    server = Server(chat("a"), chat("b", "stop"), USAGE, DONE)
    result = remote(server).chat(MESSAGES)
    assert (result["text"], result["meta_info"]["completion_tokens"]) == ("ab", 3)


def test_prompts_and_ids_are_completed():
    server = Server(event(choices=[{"text": "x", "finish_reason": "stop"}]))
    engine = remote(server, model="mine", api_key="secret")
    assert engine.generate("p")["text"] == "x"
    engine.generate(input_ids=(1, 2))
    (first, one), (_, two) = server.asked
    assert str(first.url) == "http://h/v1/completions"
    assert (one["prompt"], two["prompt"], one["model"]) == ("p", [1, 2], "mine")
    assert first.headers["Authorization"] == "Bearer secret"


def test_sampling_parameters_get_the_names_of_the_api():
    server = Server(chat("x", "stop"))
    given = {"max_new_tokens": 5, "min_new_tokens": 2, "stop": ("a", "b"), "top_k": 3, "seed": 1}
    remote(server).chat(MESSAGES, given)
    body = server.asked[0][1]
    sent = {"max_tokens": 5, "min_tokens": 2, "stop": ["a", "b"], "top_k": 3, "seed": 1}
    assert body | sent == body
    assert not {"max_new_tokens", "min_new_tokens"} & set(body)


def test_only_what_is_given_is_sent():
    server = Server(chat("x", "stop"))
    remote(server).chat(MESSAGES)
    assert set(server.asked[0][1]) == {"model", "stream", "stream_options", "messages"}


def test_what_the_api_cannot_do_is_refused():
    with pytest.raises(ValueError, match="top_logprobs is 2"):
        remote(Server()).generate("p", {"top_logprobs": 2})


def test_a_refusal_is_a_value_error_in_the_servers_words():
    server = Server(b'{"error": {"message": "too long"}}', status=400)
    with pytest.raises(ValueError, match=r"too long \(HTTP status 400\)"):
        remote(server).generate("p")


@pytest.mark.parametrize(
    ("server", "says"),
    [
        (Server(b'{"error": {"message": "the engine died"}}', status=503), "the engine died"),
        (Server(chat("a"), event(error={"message": "NaN"})), "NaN"),
        (Server(chat("a"), httpx.ReadError("reset")), "the connection failed: reset"),
        (Server(chat("a")), "without a finish reason"),
    ],
)
def test_an_answer_that_breaks_off_ends_with_an_error(server, says):
    *_, last = remote(server).chat(MESSAGES, stream=True)
    assert says in failure(last["meta_info"])


def test_closing_a_stream_closes_the_connection():
    server = Server(chat("a"), chat("b"))
    stream = remote(server).chat(MESSAGES, stream=True)
    next(stream)
    assert not server.closed
    stream.close()
    assert server.closed


def test_figures_leave_out_what_the_server_does_not_tell():
    result = remote(Server(chat("a", "stop"))).chat(MESSAGES)
    assert figures(result["meta_info"]) == "first token after 0.25 s"


@pytest.mark.parametrize("models", [(), ({"name": "x"},), (1,)])
def test_a_server_without_models_is_refused(models):
    with pytest.raises(ValueError, match="names no model: give one with --model"):
        remote(Server(models=models))


def test_a_server_that_is_not_there_is_refused(phloem):
    for command in ("chat", "generate"):
        done = phloem(command, "--base-url", "http://127.0.0.1:1", *(["x"][: command != "chat"]))
        assert done.code == 2
        assert "no server answers at http://127.0.0.1:1/v1" in done.err


def test_options_of_an_engine_are_refused_with_a_server(phloem):
    done = phloem("chat", "--base-url", "http://127.0.0.1:1", "--page-size", "16")
    assert (done.code, "leave out --page-size" in done.err) == (2, True)
