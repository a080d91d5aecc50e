"""Constraints over HTTP: on every endpoint enforced or refused, and harming nobody."""

from __future__ import annotations

import json
import re
import threading
import uuid
from pathlib import Path

import httpx
import jsonschema
import psutil
import pytest

CHAT, COMPLETIONS, GENERATE = "/v1/chat/completions", "/v1/completions", "/generate"
HELLO = [{"role": "user", "content": "hello"}]
PERSON = {
    "type": "object",
    "properties": {
        "name": {"enum": ["Ann", "Béla", "Cleo", "Đorđe", "Eve"]},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}
BACKENDS = ("auto", "fsm", "llguidance", "xgrammar")


@pytest.fixture(scope="module")
def servers(serve, chat_llama):
    """A server for each backend, of a model that says random things."""
    made = {}

    def of(backend):
        if backend not in made:
            options = {} if backend == "none" else {"grammar_compile_timeout": 300.0}
            server = serve(chat_llama, grammar_backend=backend, **options)
            if backend != "none":
                # Its library is loaded with the first constraint.
                check = {"regex": "a", "backend": backend}
                server.http.post("/v1/grammar/check", json=check, timeout=300.0)
            made[backend] = server
        return made[backend]

    yield of
    for server in made.values():
        state = server.http.get("/server_info").json()["state"]
        assert state["running"] == state["waiting"] == state["used"] == 0


@pytest.fixture(scope="module")
def server(servers):
    return servers("fsm")


def body_of(path, n=1, max_tokens=60, **fields):
    """A request of an endpoint; the constraint goes where the endpoint has it."""
    if path == GENERATE:
        sampling = {"max_new_tokens": max_tokens, "temperature": 1, "seed": 1, "n": n}
        return {"text": "hello", "sampling_params": {**sampling, **fields}}
    prompt = {"messages": HELLO} if path == CHAT else {"prompt": "hello"}
    return {**prompt, "max_tokens": max_tokens, "temperature": 1, "seed": 1, "n": n, **fields}


def texts_of(path, content):
    """The texts of a whole answer, all of which ended by themselves."""
    if path == GENERATE:
        results = content if isinstance(content, list) else [content]
        assert {result["meta_info"]["finish_reason"]["type"] for result in results} == {"stop"}
        return [result["text"] for result in results]
    assert {choice["finish_reason"] for choice in content["choices"]} == {"stop"}
    return [c["message"]["content"] if path == CHAT else c["text"] for c in content["choices"]]


def texts(server, path, **fields):
    response = server.post(path, **body_of(path, **fields))
    assert response.status_code == 200, response.text
    return texts_of(path, response.json())


def streamed_text(server, path, **fields):
    events = server.events(path, **body_of(path, **fields))
    if path == GENERATE:
        return "".join(event["text"] for event in events)
    choices = [event["choices"][0] for event in events]
    pieces = (c["delta"].get("content") if path == CHAT else c["text"] for c in choices)
    return "".join(piece or "" for piece in pieces)


def refused(response):
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    return error


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, GENERATE])
def test_a_schema_is_enforced_on_every_endpoint_by_every_backend(servers, path, backend):
    """Case GR-06; streamed and not, and for each of several choices."""
    server = servers(backend)
    found = texts(server, path, n=3, response_format=FORMAT, max_tokens=100)
    for text in found:
        jsonschema.validate(json.loads(text), PERSON)
    assert len(set(found)) == 3
    assert streamed_text(server, path, response_format=FORMAT, max_tokens=100) == found[0]


NATIVE = {
    "json_schema": (json.dumps(PERSON), r'\{\s*"name".*'),
    "regex": ("(ab|c){3}[0-9]", "(ab|c){3}[0-9]"),
    "choices": (["yes", "no, never"], "yes|no, never"),
    "json_object": (True, r"\{.*"),
    "response_format": (FORMAT, r"\{.*"),
    "ebnf": ('root ::= ("x" | "yy") [0-9]+ "!"', "(x|yy)[0-9]+!"),
}


@pytest.mark.parametrize("kind", NATIVE)
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, GENERATE])
def test_every_kind_is_enforced_on_every_endpoint(servers, path, kind):
    value, pattern = NATIVE[kind]
    server = servers("xgrammar" if kind == "ebnf" else "auto")
    for text in texts(server, path, n=2, max_tokens=150, **{kind: value}):
        assert re.fullmatch(pattern, text, re.DOTALL), text
        if pattern.startswith(r"\{"):
            json.loads(text)


@pytest.mark.parametrize(
    "field",
    [
        {"guided_json": PERSON},
        {"structured_outputs": {"json": PERSON}},
        {"guided_json": PERSON, "grammar_options": {"whitespace": "compact"}},
    ],
)
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_other_engines_names_mean_the_same(server, path, field):
    for text in texts(server, path, **field):
        jsonschema.validate(json.loads(text), PERSON)
        if "grammar_options" in field:
            assert text.startswith('{"name":"')
            assert ',"age":' in text


@pytest.mark.parametrize("fields", [{"regex": None}, {"response_format": {"type": "text"}}])
def test_what_asks_for_no_constraint_is_free(server, fields):
    free = server.post(CHAT, **body_of(CHAT)).json()["choices"]
    assert server.post(CHAT, **body_of(CHAT, **fields)).json()["choices"] == free


REFUSED = {
    "GR-03": (
        {"type": "object", "properties": {"x": {"type": "string", "enum": []}}, "required": ["x"]},
        "",
    ),
    "unique": ({"properties": {"t": {"type": "array", "uniqueItems": True}}}, "uniqueItems"),
    "remote": ({"$ref": "http://example.com/s.json"}, "$ref"),
    "unknown": ({"type": "object", "propertis": {}}, "propertis"),
    "lookaround": ({"type": "string", "pattern": "(?=a)b"}, "pattern"),
    "contradiction": ({"type": "integer", "minimum": 3, "maximum": 2}, ""),
    "no schema": ({"type": 5}, "type"),
}


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, GENERATE])
def test_a_schema_that_cannot_be_enforced_is_refused_by_its_field(server, path, case):
    """Cases GR-03 and GR-06: before anything is generated, streamed or not."""
    schema, keyword = REFUSED[case]
    asked = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}
    for stream in (False, True):
        body = body_of(path, response_format=asked)
        error = refused(server.post(path, stream=stream, **body))
        assert error["param"] == "response_format"
        assert error["code"] == "invalid_constraint"
        assert keyword in error["message"]


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_escape_in_a_pattern_is_honoured_or_refused(servers, backend):
    """Case GR-05."""
    schema = {"type": "string", "pattern": "^hello there indeed\\!$"}
    body = body_of(CHAT, response_format={"type": "json_schema", "json_schema": {"schema": schema}})
    response = servers(backend).post(CHAT, **body)
    if backend == "fsm":
        assert texts_of(CHAT, response.json()) == ['"hello there indeed!"']
    elif response.status_code == 200:
        assert json.loads(*texts_of(CHAT, response.json())) == "hello there indeed!"
    else:
        assert "pattern" in refused(response)["message"]


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (CHAT, {"response_format": FORMAT, "regex": "a"}),
        (COMPLETIONS, {"regex": "a", "ebnf": 'root ::= "a"'}),
        (GENERATE, {"regex": "a", "json_schema": "{}"}),
        (CHAT, {"guided_choice": ["a"], "structured_outputs": {"json": {}}}),
    ],
)
def test_two_constraints_are_refused_and_named(server, path, fields):
    error = refused(server.post(path, **body_of(path, **fields)))
    assert error["param"] in fields
    assert all(name in error["message"] for name in fields)


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (CHAT, {"response_format": {"type": "json_schema"}}),
        (CHAT, {"response_format": {"type": "yaml"}}),
        (CHAT, {"grammar_options": {"whitespace": "any"}}),
        (COMPLETIONS, {"regex": "("}),
        (COMPLETIONS, {"ebnf": "root ::= ("}),
        (COMPLETIONS, {"choices": []}),
        (CHAT, {"json_schema": False}),
        (COMPLETIONS, {"guided_json": False}),
        (CHAT, {"structured_outputs": {"json": False}}),
        (GENERATE, {"json_schema": False}),
        (COMPLETIONS, {"response_format": False}),
        (GENERATE, {"regex": False}),
        (GENERATE, {"regex": ["a"]}),
        (GENERATE, {"json_schema": "{"}),
        (GENERATE, {"regex": "a\0b"}),
    ],
)
def test_a_malformed_constraint_is_refused_by_its_field(server, path, fields):
    for stream in (False, True):
        error = refused(server.post(path, stream=stream, **body_of(path, **fields)))
        assert error["param"] == next(iter(fields))


def test_undeclared_properties_are_allowed_unless_the_schema_says_otherwise(server):
    """Case GR-10: as JSON Schema has it."""
    open_schema = {"type": "object", "minProperties": 1}
    for extra in ({}, {"additionalProperties": True}, {"additionalProperties": {"type": "null"}}):
        (text,) = texts(server, COMPLETIONS, json_schema={**open_schema, **extra}, max_tokens=150)
        values = json.loads(text).values()
        assert values
        assert (
            "additionalProperties" not in extra
            or extra["additionalProperties"] is True
            or (set(values) == {None})
        )
    closed = {"type": "object", "additionalProperties": False}
    assert texts(server, COMPLETIONS, json_schema=closed) == ["{}"]


def test_each_prompt_of_a_native_request_has_its_own_constraint(server):
    params = [{"regex": "a{3}"}, {"choices": ["b"]}, {"max_new_tokens": 2, "ignore_eos": True}]
    results = server.post(GENERATE, text=["x", "y", "z"], sampling_params=params).json()
    assert [result["text"] for result in results[:2]] == ["aaa", "b"]
    assert results[2]["meta_info"]["completion_tokens"] == 2


def test_logprobs_come_with_a_constraint(server):
    answer = server.post(
        CHAT, **body_of(CHAT, regex="[ab]{5}", logprobs=True, top_logprobs=2)
    ).json()["choices"][0]
    entries = answer["logprobs"]["content"]
    said = "".join(entry["token"] for entry in entries[:5])
    assert said == answer["message"]["content"]
    assert all(entry["logprob"] < 0 and len(entry["top_logprobs"]) == 2 for entry in entries[:5])


def test_an_answer_that_would_be_cut_is_steered_to_its_end(server):
    schema = {"type": "array", "items": {"type": "string"}}
    for seed in range(5):
        (text,) = texts(server, COMPLETIONS, json_schema=schema, max_tokens=20, seed=seed)
        jsonschema.validate(json.loads(text), schema)
    body = body_of(
        COMPLETIONS,
        max_tokens=20,
        json_schema={"type": "string", "minLength": 40},
        grammar_options={"steering": False},
    )
    assert server.post(COMPLETIONS, **body).json()["choices"][0]["finish_reason"] == "length"


def test_without_a_backend_constraints_are_refused_and_others_served(servers):
    server = servers("none")
    for path in (CHAT, COMPLETIONS, GENERATE):
        error = refused(server.post(path, **body_of(path, regex="a")))
        assert (error["param"], "--grammar-backend none" in error["message"]) == ("regex", True)
        assert server.post(path, **body_of(path)).status_code == 200
    refused(server.post("/v1/grammar/check", regex="a"))


# Hostile constraints.


def nested(depth):
    schema = {"type": "integer"}
    for _ in range(depth):
        item = {"type": "object", "properties": {"a": schema}}
        schema = {"oneOf": [{"type": "array", "items": schema}, item]}
    return schema


HOSTILE = {
    "counted": {"regex": "(a{1,1000}){1,1000}"},
    "deep": {"json_schema": '{"items":' * 5000 + "{}" + "}" * 5000},
    "wide": {"json_schema": {"oneOf": [{"pattern": f"{i}.*{i}.*x{{0,500}}"} for i in range(60)]}},
    "ambiguous": {"regex": "(x+x+)+y.{400}[a-z]{0,400}z(.*a.{200})"},
}


@pytest.fixture(scope="module")
def impatient(serve, chat_llama):
    return serve(chat_llama, grammar_backend="fsm", grammar_compile_timeout=1.0)


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_constraint_is_refused_while_a_stream_goes_on(impatient, case):
    """Cases GR-12 and GR-13: the next request is served."""
    pieces = []

    def read():
        body = body_of(COMPLETIONS, max_tokens=400, ignore_eos=True)
        pieces.extend(impatient.events(COMPLETIONS, **body))

    reader = threading.Thread(target=read)
    reader.start()
    try:
        error = refused(impatient.post(COMPLETIONS, **body_of(COMPLETIONS, **HOSTILE[case])))
        assert error["param"] == next(iter(HOSTILE[case]))
    finally:
        reader.join()
    assert pieces[-1]["choices"][0]["finish_reason"] == "length"
    assert texts(impatient, COMPLETIONS, regex="ab") == ["ab"]


@pytest.mark.parametrize("depth", [4, 8, 12])
def test_deeply_nested_alternatives_are_served_or_refused(impatient, depth):
    """Case GR-12."""
    body = body_of(COMPLETIONS, json_schema=nested(depth), max_tokens=100)
    response = impatient.post(COMPLETIONS, **body)
    if response.status_code == 200:
        json.loads(*texts_of(COMPLETIONS, response.json()))
    else:
        refused(response)


def test_a_client_that_leaves_ends_the_compiling_for_it(serve, chat_llama):
    """Case GR-12: nothing goes on working for nobody."""
    server = serve(chat_llama, grammar_backend="fsm")
    # New each time: what is known from an earlier run needs no worker.
    name = uuid.uuid4().hex
    assert texts(server, COMPLETIONS, regex=name) == [name]
    (worker,) = server.frontend.grammar._service.result().worker_pids
    body = body_of(COMPLETIONS, **HOSTILE["ambiguous"])
    with pytest.raises(httpx.ReadTimeout):
        server.http.post(COMPLETIONS, json=body, timeout=0.3)
    # The worker that is at it is killed; the next constraint gets a new one.
    _, running = psutil.wait_procs([psutil.Process(worker)], timeout=20)
    assert not running
    assert texts(server, COMPLETIONS, regex="cd") == ["cd"]


@pytest.fixture(scope="module")
def crashing(phloem_serve, chat_llama):
    """A server in processes of its own, with a backend that crashes when it is told to."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parent))
        yield phloem_serve(chat_llama, grammar_backend="crashing_backend:create")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("way", ["exit", "abort", "segfault", "raise", "lie"])
def test_a_compiler_that_crashes_harms_only_its_own_request(crashing, way, stream):
    """Case GR-13."""
    name = f"{way} {uuid.uuid4().hex}"
    body = body_of(COMPLETIONS, regex=name, stream=stream)
    response = crashing.post(COMPLETIONS, **body)
    if way == "lie" and stream:  # found out by the engine, after the stream has begun
        assert '"error"' in response.text
    else:
        refused(response)
    assert texts(crashing, COMPLETIONS, regex="ab") == ["ab"]


def test_a_compiler_that_somebody_kills_is_not_blamed_on_the_client(crashing):
    """Case GR-13."""
    body = body_of(COMPLETIONS, regex=f"kill {uuid.uuid4().hex}")
    for _ in range(2):
        assert crashing.post(COMPLETIONS, **body).status_code == 503
    assert texts(crashing, COMPLETIONS, regex="ab") == ["ab"]


# Tools.

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {
                "type": "object",
                "properties": {"city": {"$ref": "#/$defs/short"}, "days": {"enum": [1, 2]}},
                "required": ["city", "days"],
                "additionalProperties": False,
                "$defs": {"short": {"type": "string", "maxLength": 4}},
            },
        },
    }
    for name in ("weather", "forecast")
]
NAMED = {"type": "function", "function": {"name": "weather"}}


def call_of(message):
    (call,) = message["tool_calls"]
    assert (call["type"], message["content"]) == ("function", None)
    return call["function"]["name"], json.loads(call["function"]["arguments"])


def check_arguments(arguments):
    assert set(arguments) == {"city", "days"}
    assert len(arguments["city"]) <= 4
    assert arguments["days"] in (1, 2)


@pytest.mark.parametrize(
    ("choice", "finish"), [(NAMED, "stop"), ("required", "tool_calls")], ids=["named", "required"]
)
def test_a_call_is_made_sure_of_streamed_or_not(server, choice, finish):
    """Case AP-09."""
    asked = {"tools": TOOLS, "tool_choice": choice, "parallel_tool_calls": False, "max_tokens": 150}
    (whole,) = server.post(CHAT, **body_of(CHAT, **asked)).json()["choices"]
    name, arguments = call_of(whole["message"])
    assert name == "weather" or choice == "required"
    check_arguments(arguments)
    assert (whole["finish_reason"], whole["matched_stop"]) == (finish, None)
    events = server.events(CHAT, **body_of(CHAT, **asked))
    choices = [event["choices"][0] for event in events]
    parts = [part for c in choices for part in c["delta"].get("tool_calls", ())]
    assert [part["function"].get("name") for part in parts] == [name] + [None] * (len(parts) - 1)
    assert json.loads("".join(part["function"]["arguments"] for part in parts)) == arguments
    assert choices[-1]["finish_reason"] == finish


def test_required_calls_may_be_several_and_each_is_whole(server):
    asked = {"tools": TOOLS, "tool_choice": "required", "n": 4, "max_tokens": 400}
    for choice in server.post(CHAT, **body_of(CHAT, **asked)).json()["choices"]:
        calls = choice["message"]["tool_calls"]
        assert calls
        for call in calls:
            assert call["function"]["name"] in ("weather", "forecast")
            check_arguments(json.loads(call["function"]["arguments"]))


@pytest.mark.parametrize("choice", ["none", "auto", None])
def test_without_a_forced_call_the_text_is_content(server, choice):
    asked = body_of(CHAT, tools=TOOLS, tool_choice=choice, max_tokens=10, ignore_eos=True)
    (answer,) = server.post(CHAT, **asked).json()["choices"]
    assert "tool_calls" not in answer["message"]
    assert answer["message"]["content"]
    assert answer["finish_reason"] == "length"


@pytest.mark.parametrize("choice", [NAMED, "required"], ids=["named", "required"])
@pytest.mark.parametrize("stop", ['"city"', '"days"'])
def test_a_stop_string_that_cuts_a_call_is_what_ended_it(server, choice, stop):
    """Case TO-04."""
    asked = {"tools": TOOLS, "tool_choice": choice, "max_tokens": 150, "stop": [stop]}
    (whole,) = server.post(CHAT, **body_of(CHAT, **asked)).json()["choices"]
    assert (whole["finish_reason"], whole["matched_stop"]) == ("stop", stop)
    arguments = [each["function"]["arguments"] for each in whole["message"]["tool_calls"]]
    assert stop not in arguments[0]
    choices = [event["choices"][0] for event in server.events(CHAT, **body_of(CHAT, **asked))]
    assert choices[-1]["finish_reason"] == "stop"
    parts = [part for c in choices for part in c["delta"].get("tool_calls", ())]
    assert "".join(part["function"]["arguments"] for part in parts) == arguments[0]


def test_parameters_may_refer_by_a_name_of_their_own(server):
    parameters = {
        "$id": "http://example.com/f",
        "type": "object",
        "properties": {"a": {"$ref": "#/definitions/digit"}},
        "required": ["a"],
        "additionalProperties": False,
        "definitions": {"digit": {"enum": [1, 2]}},
    }
    function = {"name": "f", "parameters": parameters}
    tools = [{"type": "function", "function": function | {"name": name}} for name in "fg"]
    for choice in ("required", {"type": "function", "function": {"name": "f"}}):
        asked = {"tools": tools, "tool_choice": choice, "parallel_tool_calls": False}
        (answer,) = server.post(CHAT, **body_of(CHAT, **asked)).json()["choices"]
        _, arguments = call_of(answer["message"])
        assert arguments["a"] in (1, 2)


def test_a_tool_beside_a_constraint_is_refused(server):
    body = body_of(CHAT, tools=TOOLS, tool_choice=NAMED, response_format=FORMAT)
    error = refused(server.post(CHAT, **body))
    assert "tool_choice" in error["message"]
    assert "response_format" in error["message"]
    # Which is nothing that anybody was made sure of:
    body = body_of(CHAT, tools=TOOLS, tool_choice="auto", response_format=FORMAT, max_tokens=100)
    assert server.post(CHAT, **body).status_code == 200


def test_parameters_that_cannot_be_enforced_are_refused(server):
    unique = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
    tool = {"type": "function", "function": {"name": "f", "parameters": unique}}
    for choice in ("required", {"type": "function", "function": {"name": "f"}}):
        error = refused(server.post(CHAT, **body_of(CHAT, tools=[tool], tool_choice=choice)))
        assert error["param"] == "tools"
        assert "uniqueItems" in error["message"]


# The check, and what is counted.


def test_the_check_says_which_backends_enforce_a_constraint(server):
    schema = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
    report = server.post("/v1/grammar/check", json_schema=schema).json()
    assert report["supported"] is False
    (fsm,) = report["backends"]
    assert (fsm["backend"], fsm["keyword"]) == ("fsm", "uniqueItems")
    assert fsm["pointer"] == "/properties/a"
    report = server.post("/v1/grammar/check", response_format=FORMAT, backend="auto").json()
    assert report["supported"] is True
    assert [each["backend"] for each in report["backends"]] == ["fsm"]
    report = server.post("/v1/grammar/check", json_schema=schema, backend="llguidance").json()
    assert [each["backend"] for each in report["backends"]] == ["llguidance"]
    assert refused(server.post("/v1/grammar/check"))
    assert refused(server.post("/v1/grammar/check", regex="a", backend="os:system"))["param"]
    refused(server.post("/v1/grammar/check", regex="a", ebnf="b"))


def test_constraints_are_counted_and_compiled_once(servers):
    server = servers("fsm")

    def counts():
        return server.http.get("/server_info").json()["grammar"]

    before = counts()
    for _ in range(3):
        texts(server, COMPLETIONS, n=2, regex="counted[0-9]")
    after = counts()
    known = after["compiled"] + after["from_disk"] - before["compiled"] - before["from_disk"]
    assert known == 1
    assert after["from_memory"] - before["from_memory"] == 2
    assert server.metric("phloem_constraints_total", kind="regex") >= 3
    assert server.metric("phloem_grammar_compilation_time_seconds_count") >= 3
    assert server.metric("phloem_grammar_from_memory_total") == after["from_memory"]
