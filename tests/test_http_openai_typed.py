"""What the `openai` client makes of answers: parsed objects, events of streams, kinds of errors."""

from __future__ import annotations

from typing import Literal

import openai
import pydantic
import pytest

from phloem.server.http.auth import Access
from phloem.server.http.limits import Limiter
from phloem.server.keys import KeyLimits, make_ring

HELLO = [{"role": "user", "content": "hello"}]
CITY = '{"name":"Brno","people":400000}'
TEXT = "aaa, bbb."
RESPONSES = [
    {"prompt": "coin", "distributions": [{"73": 0.5, "74": 0.5}] * 40},
    {"messages": HELLO, "output": TEXT},
]


class City(pydantic.BaseModel):
    name: str
    people: int


class Weather(pydantic.BaseModel):
    """The weather of a place."""

    place: Literal["Brno", "Praha"]


@pytest.fixture(scope="module")
def client(serve, write_script):
    return serve(write_script(RESPONSES, context_length=1024)).openai()


def chat(client, **options):
    return client.chat.completions.create(model="tiny", messages=HELLO, **options)


def test_a_message_is_parsed_into_its_class(serve, write_script):
    client = serve(write_script([{"messages": HELLO, "output": CITY}])).openai()
    answer = client.chat.completions.parse(model="tiny", messages=HELLO, response_format=City)
    assert answer.choices[0].message.parsed == City(name="Brno", people=400000)
    with client.chat.completions.stream(
        model="tiny", messages=HELLO, response_format=City, stream_options={"include_usage": True}
    ) as stream:
        kinds = {event.type for event in stream}
    final = stream.get_final_completion()
    assert final.choices[0].message.parsed == City(name="Brno", people=400000)
    assert final.usage.completion_tokens == answer.usage.completion_tokens
    assert {"chunk", "content.delta", "content.done"} <= kinds


def test_a_call_is_parsed_into_its_class(serve, write_script):
    client = serve(write_script([{"prompt_ids": [], "output": "x" * 200}])).openai()
    asked = {
        "model": "tiny",
        "messages": HELLO,
        "tools": [openai.pydantic_function_tool(Weather)],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "seed": 2,
    }
    answer = client.chat.completions.parse(**asked)
    (call,) = answer.choices[0].message.tool_calls
    assert isinstance(call.function.parsed_arguments, Weather)
    with client.chat.completions.stream(**asked) as stream:
        kinds = {event.type for event in stream}
    (streamed,) = stream.get_final_completion().choices[0].message.tool_calls
    assert streamed.function.parsed_arguments == call.function.parsed_arguments
    assert {"tool_calls.function.arguments.delta", "tool_calls.function.arguments.done"} <= kinds


def test_the_text_of_a_stream_is_gathered_with_its_logprobs(client):
    asked = {"model": "tiny", "messages": HELLO, "logprobs": True, "top_logprobs": 2}
    with client.chat.completions.stream(**asked, n=2, stop=["."], seed=5) as stream:
        deltas = "".join(e.delta for e in stream if e.type == "content.delta")
    final = stream.get_final_completion()
    assert sorted(deltas) == sorted(TEXT.rstrip(".") * 2)
    whole = client.chat.completions.create(**asked, n=2, stop=["."], seed=5)
    for one, other in zip(final.choices, whole.choices, strict=True):
        assert one.message.content == other.message.content == TEXT.rstrip(".")
        assert one.finish_reason == other.finish_reason == "stop"
        tokens = [each.token for each in one.logprobs.content]
        assert tokens == [each.token for each in other.logprobs.content]
        assert tokens == [each.top_logprobs[0].token for each in one.logprobs.content]


def test_a_bias_bans_and_forces_tokens(serve, tiny_llama):
    """Case SA-04, as the client sends it."""
    client = serve(tiny_llama).openai()

    def texts(bias):
        asked = {"logit_bias": bias, "max_tokens": 8, "n": 3, "seed": 1}
        answer = client.completions.create(model="tiny", prompt="coin", logprobs=0, **asked)
        return [token for choice in answer.choices for token in choice.logprobs.tokens]

    assert texts({"74": 100}) == ["j"] * 24
    drawn = texts({})
    assert len(set(drawn)) > 1
    # One byte a token, of which those of ASCII stand for themselves.
    banned = next(token for token in drawn if token.isascii() and token.isprintable())
    assert banned not in texts({str(ord(banned) - ord("!") + 1): -100})


def test_equal_seeds_give_equal_texts(client):
    def text(seed):
        asked = {"max_tokens": 40, "seed": seed}
        return client.completions.create(model="tiny", prompt="coin", **asked).choices[0].text

    assert text(3) == text(3)
    assert len({text(seed) for seed in range(4)}) == 4


@pytest.mark.parametrize(
    ("asked", "param", "code"),
    [
        ({"temperature": 3}, "temperature", None),
        ({"messages": []}, "messages", None),
        ({"tool_choice": "required"}, "tool_choice", None),
        ({"logit_bias": {"300": 1}}, "logit_bias", None),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format", None),
        ({"max_completion_tokens": 5000}, "messages", "context_length_exceeded"),
        ({"store": True}, "store", "unsupported_parameter"),
        (
            {"messages": [{"role": "user", "content": "a" * 2000}]},
            "messages",
            "context_length_exceeded",
        ),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_bad_request_names_its_field(client, asked, param, code, stream):
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(
            **{"model": "tiny", "messages": HELLO, "stream": stream} | asked
        )
    assert caught.value.param.partition(".")[0] == param
    assert code is None or caught.value.code == code
    assert caught.value.type == "invalid_request_error"


def test_other_errors_have_their_classes(serve, write_script):
    ring = make_ring(("right",), None, "boss")
    server = serve(
        write_script(RESPONSES),
        {"access": Access(ring), "limiter": Limiter(KeyLimits(requests=1))},
    )

    def client(key):
        return openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0)

    with pytest.raises(openai.AuthenticationError) as caught:
        client("wrong").models.list()
    assert caught.value.code == "invalid_api_key"
    for ask in (
        lambda: client("boss").chat.completions.create(model="other", messages=HELLO),
        lambda: client("boss").models.retrieve("other"),
        lambda: client("boss").embeddings.create(model="other", input="a"),
    ):
        with pytest.raises(openai.NotFoundError) as caught:
            ask()
        assert (caught.value.code, caught.value.param) == ("model_not_found", "model")
    assert client("right").models.retrieve("tiny").id == "tiny"
    assert chat(client("right"), max_tokens=1).choices
    with pytest.raises(openai.RateLimitError) as caught:
        chat(client("right"), max_tokens=1)
    assert caught.value.code == "rate_limit_exceeded"
    assert int(caught.value.response.headers["retry-after"]) >= 1
    assert caught.value.request_id.startswith("req_")
