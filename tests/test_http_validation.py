"""What the HTTP API refuses: in OpenAI's shape, with a status that is true, and harming nobody."""

from __future__ import annotations

import pytest

CHAT, COMPLETIONS, GENERATE = "/v1/chat/completions", "/v1/completions", "/generate"
HELLO = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def server(serve, write_script):
    made = serve(
        write_script([{"prompt_ids": [], "output": "x" * 600}], context_length=512),
        {
            "served_model_name": "org/tiny:120b",
            "max_body_bytes": 100_000,
            "strict_fields": True,
        },
    )
    yield made
    # Whatever was refused has left nothing behind.
    state = made.http.get("/server_info").json()["state"]
    assert state["running"] == state["waiting"] == state["used"] == 0


def refused(response, status=400):
    """The error, which has OpenAI's shape."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    assert set(response.json()) == {"error"}
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert "Traceback" not in error["message"]
    return error


BAD_VALUES = {
    "temperature": [-1, 999999, "warm", True, 1e999, 2**70],
    "top_p": [-1, 0, 1.5, "x"],
    "top_k": [0, -2, 1.5, 2**80],
    "min_p": [-0.1, 2],
    "frequency_penalty": [3, -3],
    "presence_penalty": [3],
    "repetition_penalty": [0, -1, 3],
    "seed": [2**64, 1.5, "a"],
    "n": [0, -1, 5_000_000, 129, 1.5],
    "max_tokens": [-1, 2**40, 1.5],
    "min_tokens": [-1, 10**9],
    "stop": ["", [""], 5, [1]],
    "stop_token_ids": [[257], [-1], [2**70], ["a"]],
    "logit_bias": [{"300": 1}, {"-1": 1}, {"x": 1}, {"\u0663": 1}, {"1": 101}, {"1": None}, [1]],
    "stream_options": [{"include_usage": True}, {"other": 1}, 1],
    "stream": ["yes", 1],
    "ignore_eos": [1],
    "cache_salt": [1],
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_values_out_of_range_are_named(server, path, stream):
    """Cases AP-12, AP-06, SA-03 and SA-09; streamed or not (ST-15)."""
    prompt = {"messages": HELLO} if path == CHAT else {"prompt": "hello"}
    for name, values in BAD_VALUES.items():
        for value in values:
            body = {**prompt, "stream": stream, name: value}
            if name == "stream_options" and stream and value == {"include_usage": True}:
                continue
            if value == 1e999:
                response = server.http.post(path, content=b'{"prompt":"a","temperature":1e999}')
                refused(response)
                continue
            error = refused(server.post(path, **body))
            assert name in error["message"], (name, value)
            assert (error["param"] or "").split(".")[0].split("[")[0] == name, (name, value, error)
    assert server.post(path, max_tokens=1, **prompt).status_code == 200


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [{}],
        [{"role": 123, "content": "a"}],
        [{"role": "user", "content": 123}],
        [{"role": "user"}],
        [{"role": "user", "content": None}],
        [{"role": "user", "content": []}],
        [{"role": "user", "content": [{"type": "text"}]}],
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
        [{"role": "user", "content": ["text"]}],
        [{"role": "wizard", "content": "a"}],
        [{"role": "", "content": "a"}],
        [{"role": "assistant", "content": "a", "tool_calls": [{"id": "b"}]}],
        ["hello"],
        "hello",
        {"role": "user", "content": "a"},
        5,
        None,
    ],
)
def test_malformed_messages_are_refused(server, messages):
    """Case AP-06."""
    error = refused(server.post(CHAT, messages=messages))
    assert error["param"] == "messages"
    assert "message" in error["message"]


@pytest.mark.parametrize(
    "prompt", [[], "", [[]], [[], [1]], [1, "a"], [[1], "a"], 5, None, {}, [1.5], [True], [None]]
)
def test_malformed_prompts_are_refused(server, prompt):
    assert refused(server.post(COMPLETIONS, prompt=prompt))["message"]
    assert refused(server.post(COMPLETIONS))["message"]


@pytest.mark.parametrize("ids", [[257], [-1], [2**31], [2**63], [2**70]])
def test_ids_outside_the_vocabulary_are_refused(server, ids):
    """Case SA-09."""
    assert "prompt" in refused(server.post(COMPLETIONS, prompt=ids))["message"]
    refused(server.post(GENERATE, input_ids=ids))


@pytest.mark.parametrize("name", ["top_logprobs", "logprobs"])
def test_too_many_logprobs_are_refused(server, name):
    """Case SA-09."""
    asked = {"logprobs": True, "top_logprobs": 10**9} if name == "top_logprobs" else {name: 10**9}
    path = CHAT if name == "top_logprobs" else COMPLETIONS
    prompt = {"messages": HELLO} if path == CHAT else {"prompt": "hello"}
    error = refused(server.post(path, **prompt, **asked))
    assert error["param"] == name


def test_too_many_stop_strings_are_refused(server):
    assert (
        "stop has 33 strings"
        in refused(server.post(COMPLETIONS, prompt="a", stop=["x"] * 33))["message"]
    )


def test_top_logprobs_without_logprobs_are_refused(server):
    assert refused(server.post(CHAT, messages=HELLO, top_logprobs=2))["param"] == "top_logprobs"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("asked", [{}, {"max_tokens": None}, {"max_tokens": 5}])
def test_a_prompt_longer_than_the_context_states_both_lengths(server, stream, asked):
    """Cases AP-03, AP-04 and ST-15."""
    text = "a" * 600
    for path, length, prompt in (
        (COMPLETIONS, 600, {"prompt": text}),
        (CHAT, len("[user][assistant]") + 600, {"messages": [{"role": "user", "content": text}]}),
    ):
        error = refused(server.post(path, stream=stream, **prompt, **asked))
        assert error["code"] == "context_length_exceeded"
        assert error["type"] == "invalid_request_error"
        assert error["param"] == next(iter(prompt))
        assert "512 tokens" in error["message"]
        assert f"{length} tokens" in error["message"]


@pytest.mark.parametrize("length", [600, 50_000])
def test_the_error_of_a_native_prompt_that_is_too_long_names_its_field(server, length):
    for name, prompt in (("text", "a" * length), ("input_ids", [1] * 600)):
        error = refused(server.post(GENERATE, **{name: prompt}))
        assert (error["param"], error["code"]) == (name, "context_length_exceeded")


def test_logprobs_from_beyond_the_prompt_are_refused(server):
    params = {"prompt_logprobs_from": 3, "max_new_tokens": 1}
    error = refused(server.post(GENERATE, text="abc", sampling_params=params))
    assert error["param"] == "prompt_logprobs_from"
    assert "the prompt has 3 tokens: give a position from 0 to 2" in error["message"]


def test_an_empty_prompt_is_called_empty(server):
    error = refused(server.post(COMPLETIONS, prompt=""))
    assert error["message"] == "the prompt is empty: give at least one token"


def test_more_tokens_than_fit_are_refused_and_a_default_is_cut(server):
    error = refused(server.post(COMPLETIONS, prompt="a" * 500, max_tokens=100))
    assert error["code"] == "context_length_exceeded"
    for path, prompt in (
        (COMPLETIONS, {"prompt": "a" * 500}),
        (CHAT, {"messages": HELLO}),
    ):
        response = server.post(path, ignore_eos=True, **prompt).json()
        limit = server.http.get("/server_info").json()["limits"]["max_total_tokens"]
        assert response["usage"]["total_tokens"] == limit
        assert response["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("path", "field"),
    [
        (CHAT, {"tool_choice": "required"}),
        (CHAT, {"functions": [{"name": "f"}]}),
        (CHAT, {"audio": {"voice": "x"}}),
        (CHAT, {"modalities": ["text", "audio"]}),
        (CHAT, {"reasoning_effort": "high"}),
        (CHAT, {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}),
        (CHAT, {"guided_whitespace_pattern": " "}),
        (COMPLETIONS, {"suffix": "x"}),
        (COMPLETIONS, {"best_of": 0}),
        (COMPLETIONS, {"best_of": 129}),
        (COMPLETIONS, {"bad_words": ["a"]}),
        (COMPLETIONS, {"allowed_token_ids": [1]}),
        (COMPLETIONS, {"prompt_logprobs": 1}),
        (COMPLETIONS, {"truncate_prompt_tokens": 5}),
        (CHAT, {"stop_regex": "a+"}),
        (COMPLETIONS, {"lora_path": "x"}),
        (COMPLETIONS, {"use_beam_search": True}),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(server, path, field):
    """Nothing that is asked for is left out silently."""
    prompt = {"messages": HELLO} if path == CHAT else {"prompt": "hello"}
    for stream in (False, True):
        error = refused(server.post(path, stream=stream, **prompt, **field))
        assert error["param"] == next(iter(field))
        assert error["param"] in error["message"]


def test_options_of_streams_are_named(server):
    body = {"prompt": "a", "max_tokens": 1, "stream": True}
    plain = {"include_usage": False, "include_obfuscation": False}
    assert server.events(COMPLETIONS, **body, stream_options=plain)
    for options in ({"include_obfuscation": True}, {"continuous_usage_stats": True}):
        error = refused(server.post(COMPLETIONS, **body, stream_options=options))
        assert error["param"].startswith("stream_options")
        assert next(iter(options)) in f"{error['param']} {error['message']}"


def test_options_of_a_stream_need_one_also_where_the_best_are_chosen(server):
    options = {"stream_options": {"include_usage": True}}
    for more in ({}, {"best_of": 2}):
        error = refused(server.post(COMPLETIONS, prompt="a", **options, **more))
        assert error["param"] == "stream_options"


def test_what_asks_for_nothing_more_is_taken(server):
    """Fields that clients send by default, at values that change nothing."""
    response = server.post(
        CHAT,
        messages=HELLO,
        max_tokens=1,
        tools=None,
        tool_choice="none",
        response_format={"type": "text"},
        modalities=["text"],
        store=False,
        user="somebody",
        metadata={"a": "b"},
        logit_bias=None,
        stop=None,
        n=None,
        temperature=None,
        stream=None,
        stream_options=None,
        logprobs=False,
        add_special_tokens=False,
    )
    assert response.status_code == 200, response.text
    for suffix in (None, ""):
        more = {"n": 2, "best_of": 2, "suffix": suffix}
        response = server.post(COMPLETIONS, prompt="a", max_tokens=1, **more)
        assert response.status_code == 200, response.text


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (COMPLETIONS, {"prompt": ""}, "prompt"),
        (COMPLETIONS, {"prompt": [10**6]}, "prompt"),
        (COMPLETIONS, {"input_ids": [10**6]}, "input_ids"),
        (COMPLETIONS, {"prompt": "a", "stop": ["x"] * 33}, "stop"),
        (COMPLETIONS, {"prompt": "a", "regex": ""}, "regex"),
        (CHAT, {"input_ids": [10**6]}, "input_ids"),
        (GENERATE, {"text": ""}, "text"),
        (GENERATE, {"input_ids": [10**6]}, "input_ids"),
        (GENERATE, {"text": "a", "rid": ""}, "rid"),
        (GENERATE, {"text": ["a", "b"], "rid": ["x", "x"]}, "rid"),
        (GENERATE, {"text": "a", "sampling_params": {"stop": ["x"] * 33}}, "stop"),
        (GENERATE, {"text": "a", "sampling_params": {"regex": ""}}, "regex"),
    ],
)
def test_what_is_wrong_is_named(server, path, fields, param):
    assert refused(server.post(path, **fields))["param"] == param


def test_an_unknown_field_is_refused_with_the_nearest_known_where_fields_are_strict(server):
    """Case SA-03: a misspelt parameter must not be left out silently."""
    error = refused(server.post(COMPLETIONS, prompt="a", temprature=0.5))
    assert error["param"] == "temprature"
    assert "temperature" in error["message"]
    for path in (CHAT, GENERATE, "/abort_request"):
        assert refused(server.post(path, messages=HELLO, zzz=1))["param"]


def test_an_absent_max_tokens_takes_the_default(server):
    """Case AP-01: null is the same as absent; 16 for completions, as OpenAI's."""
    for body in ({}, {"max_tokens": None}):
        response = server.post(COMPLETIONS, prompt="hello", **body)
        assert response.json()["usage"]["completion_tokens"] == 16
    response = server.post(CHAT, messages=HELLO, max_tokens=None, max_completion_tokens=3)
    assert response.json()["usage"]["completion_tokens"] == 3
    refused(server.post(CHAT, messages=HELLO, max_tokens=4, max_completion_tokens=3))


def test_a_minimum_beyond_the_default_lifts_it(server):
    response = server.post(COMPLETIONS, prompt="hello", min_tokens=20)
    assert response.json()["usage"]["completion_tokens"] == 20


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_an_unknown_model_is_not_found(server, path):
    """Cases AP-07 and AP-10: names are compared whole, also with a colon in them."""
    prompt = {"messages": HELLO} if path == CHAT else {"prompt": "hello"}
    for model in ("other", "org/tiny", ""):
        error = refused(server.post(path, model=model, **prompt), 404)
        assert error["code"] == "model_not_found"
        assert error["param"] == "model"
    for asked in ({"model": "org/tiny:120b"}, {"model": None}, {}):
        response = server.post(path, max_tokens=1, **prompt, **asked)
        assert response.status_code == 200
        assert response.json()["model"] == "org/tiny:120b"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"5",
        b'{"prompt": "a", "temperature": NaN}',
        b'{"prompt": "a", "temperature": Infinity}',
        b'{"prompt": "a", "temperature": 1e400}',
        b'{"prompt": "\xff"}',
        b'{"prompt": "\\ud800"}',
        b'{"prompt": ' + b"[" * 50_000,
        b'{"prompt": "a", "seed": ' + b"9" * 5000 + b"}",
        b'{"prompt": "a", "temperature": ' + b"9" * 400 + b"}",
    ],
)
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, GENERATE])
def test_bodies_that_are_no_json_object_are_refused(server, path, body):
    refused(server.http.post(path, content=body))


def test_a_body_over_the_limit_is_refused(server):
    assert refused(server.post(COMPLETIONS, prompt="a" * 200_000), 413)["code"]


def test_unknown_paths_and_methods_have_the_same_shape(server):
    assert refused(server.http.get("/v1/nothing"), 404)["code"] == "not_found"
    assert refused(server.http.get(COMPLETIONS), 405)["code"] == "method_not_allowed"
    assert refused(server.http.get("/v1/models/other"), 404)["code"] == "model_not_found"


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"text": "a", "input_ids": [1]},
        {"text": 5},
        {"text": []},
        {"text": [1]},
        {"input_ids": "abc"},
        {"input_ids": []},
        {"input_ids": [[1], []]},
        {"text": "a", "sampling_params": {"temperature": -1}},
        {"text": "a", "sampling_params": {"temprature": 1}},
        {"text": "a", "sampling_params": {"stop": 5}},
        {"text": "a", "sampling_params": {"n": 0}},
        {"text": "a", "sampling_params": {"temperature": 10**400}},
        {"text": "a", "sampling_params": 5},
        {"text": ["a", "b"], "sampling_params": [{}]},
        {"text": ["a", "b"], "stream": True},
        {"text": "a", "sampling_params": {"n": 2}, "stream": True},
        {"text": ["a", "b"], "rid": "one"},
        {"text": "a" * 600},
        {"text": "abc", "sampling_params": {"prompt_logprobs_from": 3}},
    ],
)
def test_malformed_native_requests_are_refused(server, body):
    refused(server.post(GENERATE, **body))


@pytest.mark.parametrize("body", [{}, {"rid": "a", "abort_all": True}, {"rid": 5}])
def test_an_abort_of_nothing_in_particular_is_refused(server, body):
    refused(server.post("/abort_request", **body))


@pytest.mark.parametrize(("path", "field"), [(COMPLETIONS, "prompt"), (GENERATE, "text")])
def test_prompts_are_counted_before_any_is_read(server, path, field):
    error = refused(server.post(path, **{field: ["a" * 600, *["a"] * 4096]}))
    assert "4097 prompts with n 1 are more than 4096 sequences" in error["message"]


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("field", ["regex", "ebnf"])
def test_a_long_pattern_is_refused_before_it_is_compiled(server, path, field):
    given = {"messages": HELLO} if path == CHAT else {"prompt": "a"}
    error = refused(server.post(path, **given, **{field: "a" * 32_769}))
    assert error["message"] == f"{field}: it has 32769 characters: give at most 32768"
    assert error["param"] == field


def test_one_refused_sequence_starts_none_of_its_request(server):
    before = server.http.get("/server_info").json()["state"]
    refused(server.post(COMPLETIONS, prompt=["a", "b", "c" * 600], max_tokens=400))
    after = server.http.get("/server_info").json()["state"]
    assert before["total"] == after["total"]
