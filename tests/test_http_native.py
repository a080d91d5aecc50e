"""`POST /generate`: the engine's own results over HTTP, whole and streamed."""

from __future__ import annotations

import json

import pytest

from phloem.server import Engine

PARAMS = {"temperature": 0, "max_new_tokens": 8, "top_logprobs": 2, "prompt_logprobs_from": 0}
VARYING = ("id", "timings", "cached_tokens")


@pytest.fixture(scope="module")
def server(serve, chat_llama):
    return serve(chat_llama)


@pytest.fixture(scope="module")
def engine(chat_llama):
    with Engine(model=str(chat_llama)) as made:
        yield made


def stable(result):
    meta = {name: value for name, value in result["meta_info"].items() if name not in VARYING}
    return result | {"meta_info": meta}


def generate(server, **body):
    response = server.post("/generate", **body)
    assert response.status_code == 200, response.text
    return response.json()


def test_results_are_those_of_the_engine(server, engine):
    over_http = generate(server, text="abc", sampling_params=PARAMS)
    in_process = json.loads(json.dumps(engine.generate("abc", PARAMS)))
    assert stable(over_http)["text"] == stable(in_process)["text"]
    assert set(over_http["meta_info"]) == set(in_process["meta_info"])
    assert set(over_http["meta_info"]["timings"]) == {"queue", "ttft", "decode", "total"}
    ids = [token for _, token in over_http["meta_info"]["output_token_logprobs"]]
    assert ids == over_http["output_ids"] == in_process["output_ids"]


@pytest.mark.parametrize("given", [{"text": ["abc", "xyz"]}, {"input_ids": [[1, 2], [3]]}])
def test_a_list_gives_a_list_and_n_gives_more(server, given):
    two = generate(server, **given, sampling_params=PARAMS)
    own = generate(server, **given, sampling_params=[PARAMS, PARAMS | {"max_new_tokens": 2}])
    four = generate(server, **given, sampling_params=PARAMS | {"n": 2})
    assert [len(r["output_ids"]) for r in two] == [8, 8]
    assert [len(r["output_ids"]) for r in own] == [8, 2]
    assert [r["output_ids"] for r in four] == [two[i]["output_ids"] for i in (0, 0, 1, 1)]


def test_ids_are_the_same_as_their_text(server):
    text = generate(server, text="abc", sampling_params=PARAMS)
    ids = generate(server, input_ids=[65, 66, 67], sampling_params=PARAMS)
    assert stable(text)["output_ids"] == stable(ids)["output_ids"]
    assert ids["meta_info"]["cached_tokens"] == 0  # prompt logprobs are computed


def test_a_stream_joined_is_the_whole(server):
    body = {"text": "abc", "sampling_params": PARAMS}
    whole = generate(server, **body)
    parts = server.events("/generate", **body)
    assert "".join(part["text"] for part in parts) == whole["text"]
    assert [token for part in parts for token in part["output_ids"]] == whole["output_ids"]
    for name in ("output_token_logprobs", "output_top_logprobs"):
        joined = [entry for part in parts for entry in part["meta_info"][name]]
        assert len(joined) == len(whole["meta_info"][name])
    assert [part["meta_info"]["finish_reason"] is None for part in parts] == (
        [True] * (len(parts) - 1) + [False]
    )


def test_a_request_has_the_id_that_it_was_given(server):
    assert generate(server, text="a", rid="mine")["meta_info"]["id"] == "mine"
    named = generate(server, text=["a", "b"], rid=["one", "two"])
    assert [result["meta_info"]["id"] for result in named] == ["one", "two"]


def test_special_tokens_and_salts_are_as_elsewhere(server):
    body = {"text": "a salted prompt", "sampling_params": {"max_new_tokens": 1}}
    counts = [
        generate(server, **body, cache_salt=salt)["meta_info"]["cached_tokens"]
        for salt in ("a", "a", "b")
    ]
    assert counts[0] == counts[2] == 0
    assert counts[1] > 0
    params = {"temperature": 0, "max_new_tokens": 1, "logit_bias": {"0": 100}, "ignore_eos": True}
    for skip, text in ((True, ""), (False, "<end>")):
        result = generate(server, text="a", sampling_params=params, skip_special_tokens=skip)
        assert result["text"] == text
