"""gRPC's messages: what they mean, and that they are generated from the proto."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import phloem.server.grpc as package
from phloem.server.client import Finish, Generated, RequestFailed, TokenLogprob
from phloem.server.grpc import phloem_pb2 as pb
from phloem.server.grpc.convert import (
    body_of,
    embed_body_of,
    embed_request_of,
    request_of,
    response_of,
    result_of,
)
from phloem.server.grpc.status import code_of, metadata_of
from phloem.server.http_config import HttpArgs

TOKENS = st.integers(0, 2**31 - 1)
COUNTS = TOKENS
FLOATS = st.floats(allow_nan=False, width=64)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
TOPS = st.lists(st.tuples(TOKENS, FLOATS))
LOGPROBS = st.lists(st.builds(TokenLogprob, TOKENS, st.none() | FLOATS, TOPS))
FINISHES = st.builds(
    Finish, TEXTS, st.none() | TEXTS | TOKENS, st.none() | TEXTS, st.none() | TOKENS
)


@given(
    st.builds(
        Generated,
        request_id=TEXTS,
        text=TEXTS,
        token_ids=st.lists(TOKENS),
        finish=st.none() | FINISHES,
        prompt_tokens=COUNTS,
        completion_tokens=COUNTS,
        cached_tokens=COUNTS,
        retractions=COUNTS,
        timings=st.dictionaries(TEXTS, FLOATS),
        logprobs=LOGPROBS,
        prompt_logprobs=LOGPROBS,
    )
)
def test_a_result_survives_its_message(result):
    sent = response_of(result).SerializeToString()
    assert result_of(pb.GenerateResponse.FromString(sent)) == result


PARAMS = {
    "max_new_tokens": 0,
    "min_new_tokens": 1,
    "temperature": 0.0,
    "top_p": 0.1,
    "top_k": -1,
    "min_p": 0.0,
    "frequency_penalty": -1.5,
    "presence_penalty": 0.0,
    "repetition_penalty": 1.1,
    "seed": 2**62,
    "logit_bias": {"5": -100.0},
    "stop": ["a", ""],
    "stop_token_ids": [0, 7],
    "ignore_eos": False,
    "top_logprobs": 0,
    "prompt_logprobs_from": 0,
    "regex": "",
    "grammar_options": {"jump_forward": False, "whitespace": "compact"},
}
OPTIONS = {
    "rid": "",
    "cache_salt": "",
    "priority": -1,
    "tenant": "t",
    "timeout": 0.1,
    "queue_timeout": 0.0,
    "skip_special_tokens": False,
}


def through_the_wire(message):
    return type(message).FromString(message.SerializeToString())


def test_every_field_asks_for_itself_in_the_endpoints_body():
    request = through_the_wire(request_of("a", PARAMS, None, OPTIONS))
    assert body_of(request) == {"text": "a", "sampling_params": PARAMS, **OPTIONS}
    fields = {field.name for field in pb.SamplingParams.DESCRIPTOR.fields}
    constraints = {"json_schema", "json_object", "regex", "ebnf", "choices", "structural_tag"}
    assert fields == set(PARAMS) | constraints
    names = {field.name for field in pb.GenerateRequest.DESCRIPTOR.fields}
    assert names == set(OPTIONS) | {"text", "input_ids", "sampling_params"}


@pytest.mark.parametrize(
    ("given_params", "meant"),
    [
        ({"stop": "a"}, {"stop": ["a"]}),
        ({"logit_bias": {5: 1}}, {"logit_bias": {"5": 1.0}}),
        ({"choices": ["a", "b"]}, {"choices": ["a", "b"]}),
        ({"json_object": False}, {"json_object": False}),
        ({"json_schema": {"type": "null"}}, {"json_schema": '{"type": "null"}'}),
        ({"seed": None}, {}),
    ],
)
def test_the_client_takes_parameters_as_the_engine_does(given_params, meant):
    request = through_the_wire(request_of(None, given_params, [1, 2], {"tenant": None}))
    assert body_of(request) == {"input_ids": [1, 2], "sampling_params": meant}


@pytest.mark.parametrize(
    ("params", "options", "says"),
    [
        ({"beams": 1}, {}, "beams is no sampling parameter over gRPC"),
        ({"n": 2}, {}, "n is 2, and a result here is one output"),
        ({"seed": "x"}, {}, "of a wrong type"),
        ({}, {"priority": "high"}, "of a wrong type"),
        ({}, {"stream_options": {}}, "stream_options"),
    ],
)
def test_what_no_message_holds_is_refused_by_name(params, options, says):
    with pytest.raises(ValueError, match=says):
        request_of("a", params, None, options)


@pytest.mark.parametrize(
    ("inputs", "body"),
    [("a", ["a"]), (["a", "b"], ["a", "b"]), ([[1, 2], [3]], [[1, 2], [3]]), ([], [])],
)
def test_inputs_of_vectors_keep_their_form(inputs, body):
    message = through_the_wire(embed_request_of(inputs, {"dimensions": 3, "pooling": None}))
    assert embed_body_of(message) == {"input": body, "dimensions": 3, "encoding_format": "base64"}


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (400, "INVALID_ARGUMENT"),
        (401, "UNAUTHENTICATED"),
        (403, "PERMISSION_DENIED"),
        (404, "NOT_FOUND"),
        (408, "DEADLINE_EXCEEDED"),
        (413, "INVALID_ARGUMENT"),
        (429, "RESOURCE_EXHAUSTED"),
        (499, "ABORTED"),
        (500, "INTERNAL"),
        (503, "UNAVAILABLE"),
        (None, "INTERNAL"),
    ],
)
def test_statuses_have_their_codes(status, code):
    assert code_of(RequestFailed("no", status)).name == code


def test_the_time_to_come_again_is_told_to_people_and_to_libraries():
    told = dict(metadata_of(RequestFailed("no", 429, retry_after=1.2, param="n")))
    assert told == {
        "phloem-status": "429",
        "phloem-param": "n",
        "retry-after": "2",
        "grpc-retry-pushback-ms": "1200",
    }


def versionless(text):
    """Generated code without the version of what generated it, nor what depends on that: which
    arguments of constructors may be None."""
    version = r"Protobuf Python Version: .*|PUBLIC,\s+\d+,\s+\d+,\s+\d+,\s+'.*?'"
    return re.sub(rf"{version}|def __init__.*", "", text)


def test_the_generated_modules_are_those_of_the_proto(tmp_path):
    if importlib.util.find_spec("grpc_tools") is None:
        pytest.skip("the package grpcio-tools, which generates them, is not installed")
    folder = Path(package.__file__).parent
    target = tmp_path / "phloem/server/grpc"
    target.mkdir(parents=True)
    (target / "phloem.proto").write_text((folder / "phloem.proto").read_text())
    out = [f"--python_out={tmp_path}", f"--pyi_out={tmp_path}"]
    protoc = [sys.executable, "-m", "grpc_tools.protoc", f"-I{tmp_path}", *out]
    subprocess.run([*protoc, "phloem/server/grpc/phloem.proto"], check=True, cwd=tmp_path)
    for name in ("phloem_pb2.py", "phloem_pb2.pyi"):
        assert versionless((folder / name).read_text()) == versionless((target / name).read_text())


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"grpc_port": 70_000}, "grpc_port 70000 is no port"),
        ({"grpc_port": 5000, "port": 5000}, "grpc_port 5000 is that of HTTP too"),
    ],
)
def test_a_port_that_cannot_be_is_refused(options, says):
    with pytest.raises(ValueError, match=says):
        HttpArgs(**options)


def test_without_the_libraries_the_option_names_the_extra(monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name: None if name == "grpc_health" else found(name)
    )
    with pytest.raises(ValueError, match=r"pip install 'phloem-server\[grpc\]', or leave out"):
        HttpArgs(grpc_port=0)
    assert HttpArgs().grpc_port is None


def test_the_client_names_the_extra_too():
    code = (
        "import sys; sys.modules['grpc'] = None\n"
        "from phloem.server.client import AsyncClient\n"
        "from phloem.server.client import AsyncGrpcClient\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert "pip install 'phloem-server[grpc]'" in done.stderr
