"""The official `openai` client against the server, in this process and as `phloem serve`."""

from __future__ import annotations

import json

import openai
import pytest

HELLO = [{"role": "user", "content": "hello"}]
FRENCH = [{"role": "system", "content": "French."}, *HELLO]
TEXT = "Žluťoučký kůň 🐎 pěl. STOP not this"
SHOWN = "Žluťoučký kůň 🐎 pěl. "

RESPONSES = [
    {"messages": HELLO, "output": TEXT},
    {"messages": FRENCH, "output": "bonjour"},
    {"prompt": "say", "output": TEXT},
    {"prompt": "coin", "distributions": [{"73": 0.5, "74": 0.5}] * 40},
]


@pytest.fixture(scope="module", params=["in this process", "phloem serve"])
def client(request, serve, phloem_serve, write_script):
    start = serve if request.param == "in this process" else phloem_serve
    return start(write_script(RESPONSES)).openai()


def chat(client, messages=HELLO, **options):
    return client.chat.completions.create(
        model="tiny", messages=messages, **{"temperature": 0, "stop": "STOP"} | options
    )


def complete(client, prompt="say", **options):
    return client.completions.create(
        model="tiny", prompt=prompt, **{"temperature": 0, "max_tokens": 100} | options
    )


def test_a_chat_is_answered(client):
    answer = chat(client)
    (choice,) = answer.choices
    assert answer.object == "chat.completion"
    assert choice.message.role == "assistant"
    assert choice.message.content == SHOWN
    assert choice.finish_reason == "stop"
    assert choice.matched_stop == "STOP"
    usage = answer.usage
    assert usage.prompt_tokens == len("[user]hello[assistant]")
    assert usage.completion_tokens == len(f"{SHOWN}STOP".encode())
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert usage.prompt_tokens_details.cached_tokens >= 0


def test_a_chat_may_have_parts_and_developers(client):
    parts = [
        {"role": "developer", "content": [{"type": "text", "text": "French."}]},
        {"role": "user", "content": "hello", "name": "somebody"},
    ]
    assert chat(client, parts).choices[0].message.content == "bonjour"


def test_a_streamed_chat_is_the_whole_one(client):
    chunks = list(chat(client, stream=True, stream_options={"include_usage": True}))
    *chunks, last = chunks
    deltas = [chunk.choices[0].delta for chunk in chunks]
    assert "".join(delta.content or "" for delta in deltas) == SHOWN
    assert not any("\ufffd" in (delta.content or "") for delta in deltas)
    assert [delta.role for delta in deltas] == ["assistant"] + [None] * (len(deltas) - 1)
    assert [chunk.choices[0].finish_reason for chunk in chunks[-2:]] == [None, "stop"]
    assert last.usage == chat(client).usage.model_copy(
        update={"prompt_tokens_details": last.usage.prompt_tokens_details}
    )


@pytest.mark.parametrize("create", [chat, complete])
def test_a_stream_has_one_id_and_its_usage_at_the_end(client, create):
    """Cases ST-09 and ST-13."""
    chunks = list(create(client, stream=True, stream_options={"include_usage": True}))
    for name in ("id", "created", "model", "object"):
        assert len({getattr(chunk, name) for chunk in chunks}) == 1
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens > 0
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert all(chunk.choices for chunk in chunks[:-1])


@pytest.mark.parametrize("create", [chat, complete])
@pytest.mark.parametrize("asked", [{}, {"stream_options": {}}])
def test_a_stream_has_no_usage_unless_it_is_asked_for(client, create, asked):
    """Case ST-10."""
    chunks = list(create(client, stream=True, **asked))
    assert all(chunk.usage is None and chunk.choices for chunk in chunks)


def test_a_completion_is_answered_and_streamed(client):
    answer = complete(client)
    assert answer.object == "text_completion"
    assert answer.choices[0].text == TEXT
    chunks = list(complete(client, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == TEXT
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_prompts_come_as_texts_and_as_ids(client):
    ids = [byte + 1 for byte in _byte_ids("say")]
    for prompt, count in (("say", 1), (["say", "say"], 2), (ids, 1), ([ids, ids, ids], 3)):
        choices = complete(client, prompt).choices
        assert [choice.text for choice in choices] == [TEXT] * count
        assert [choice.index for choice in choices] == list(range(count))


def _byte_ids(text):
    from tokenizers import pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    return [alphabet.index(character) for character in text]


def test_n_choices_have_their_own_samples_and_indices(client):
    answer = complete(client, "coin", n=4, temperature=1, seed=3, max_tokens=40)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    texts = [choice.text for choice in answer.choices]
    assert len(set(texts)) == 4
    streamed = [""] * 4
    for chunk in complete(client, "coin", n=4, temperature=1, seed=3, max_tokens=40, stream=True):
        streamed[chunk.choices[0].index] += chunk.choices[0].text
    assert streamed == texts
    assert answer.usage.prompt_tokens == 4
    assert answer.usage.completion_tokens == 160


def test_logprobs_of_a_chat_name_tokens_and_bytes(client):
    answer = chat(client, logprobs=True, top_logprobs=2, max_tokens=3)
    content = answer.choices[0].logprobs.content
    assert len(content) == answer.usage.completion_tokens == 3
    assert bytes(byte for entry in content for byte in entry.bytes) == TEXT.encode()[:3]
    assert [entry.logprob for entry in content] == [0, 0, 0]
    assert content[2].token == "l"
    assert content[2].top_logprobs[0].token == "l"
    streamed = [
        entry
        for chunk in chat(client, logprobs=True, top_logprobs=2, max_tokens=3, stream=True)
        for entry in (chunk.choices[0].logprobs.content if chunk.choices[0].logprobs else ())
    ]
    assert streamed == content


def test_a_response_format_is_enforced_streamed_or_not(client):
    """Case GR-06: the model would say something else."""
    schema = {
        "type": "object",
        "properties": {"word": {"enum": ["kůň", "pes"]}},
        "required": ["word"],
        "additionalProperties": False,
    }
    wanted = {"type": "json_schema", "json_schema": {"name": "w", "schema": schema, "strict": True}}
    (choice,) = chat(client, response_format=wanted).choices
    assert json.loads(choice.message.content)["word"] in ("kůň", "pes")
    assert choice.finish_reason == "stop"
    chunks = list(chat(client, response_format=wanted, stream=True))
    deltas = [chunk.choices[0].delta.content or "" for chunk in chunks]
    assert "".join(deltas) == choice.message.content
    free = chat(client, response_format={"type": "json_object"}, max_tokens=40, stop=None)
    assert isinstance(json.loads(free.choices[0].message.content), dict)
    nothing = {"name": "w", "schema": {"type": "string", "enum": []}}
    wrong = {"type": "json_schema", "json_schema": nothing}
    with pytest.raises(openai.BadRequestError) as caught:
        chat(client, response_format=wrong, stream=True)
    assert caught.value.param == "response_format"


def test_the_fields_of_other_engines_are_enforced(client):
    for extra, texts in (
        ({"choices": ["yes", "no"]}, ("yes", "no")),
        ({"regex": "x{3}"}, ("xxx",)),
        ({"structured_outputs": {"choice": ["ja"]}}, ("ja",)),
    ):
        assert complete(client, extra_body=extra).choices[0].text in texts


def test_a_tool_is_called_streamed_or_not(client):
    """Case AP-09."""
    parameters = {
        "type": "object",
        "properties": {"city": {"enum": ["Brno", "Praha"]}},
        "required": ["city"],
        "additionalProperties": False,
    }
    function = {"name": "weather", "parameters": parameters}
    tools = [{"type": "function", "function": function}]
    named = {"type": "function", "function": {"name": "weather"}}
    for choice, finish in ((named, "stop"), ("required", "tool_calls")):
        asked = {"tools": tools, "tool_choice": choice, "parallel_tool_calls": False}
        (answer,) = chat(client, **asked).choices
        (call,) = answer.message.tool_calls
        assert answer.finish_reason == finish
        assert (call.type, call.function.name) == ("function", "weather")
        assert json.loads(call.function.arguments)["city"] in ("Brno", "Praha")
        chunks = [chunk.choices[0] for chunk in chat(client, stream=True, **asked)]
        parts = [part for chunk in chunks for part in chunk.delta.tool_calls or ()]
        assert [part.function.name for part in parts if part.function.name] == ["weather"]
        assert parts[0].id.startswith("call_")
        arguments = "".join(part.function.arguments for part in parts)
        assert arguments == call.function.arguments
        assert chunks[-1].finish_reason == finish


def test_errors_have_their_type_and_fields(client):
    with pytest.raises(openai.BadRequestError) as caught:
        chat(client, temperature=9)
    assert caught.value.param == "temperature"
    assert caught.value.type == "invalid_request_error"
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="other", messages=HELLO)
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as long:
        complete(client, "a" * 9000, stream=True)
    assert long.value.code == "context_length_exceeded"
    assert chat(client).choices[0].finish_reason == "stop"


def test_models_are_listed(client):
    (model,) = client.models.list().data
    assert model.id == "tiny"
    assert client.models.retrieve("tiny").owned_by == "phloem"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


def test_extras_of_the_field_are_taken(client):
    answer = complete(
        client,
        max_tokens=60,
        extra_body={
            "top_k": 5,
            "min_p": 0.1,
            "repetition_penalty": 1.1,
            "ignore_eos": True,
            "min_tokens": 50,
            "stop_token_ids": [],
            "skip_special_tokens": False,
            "cache_salt": "mine",
        },
    )
    assert answer.usage.completion_tokens == 60
    assert answer.choices[0].text.startswith(TEXT)
    assert "<end>" in answer.choices[0].text
