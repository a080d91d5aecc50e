"""`/v1/embeddings` and `/encode`: OpenAI's client against a tiny model."""

from __future__ import annotations

import base64
import threading

import numpy as np
import pytest

TEXTS = ["the sap rises", "in spring", "the sap rises, and then it falls"]


@pytest.fixture(scope="module")
def server(serve, tiny_llama):
    return serve(tiny_llama, dtype="float32", quantization="none", chunked_prefill_size=16)


@pytest.fixture(scope="module")
def embed(server):
    """The vectors of `/v1/embeddings`, as an array."""

    def call(given, **fields):
        answer = server.post("/v1/embeddings", input=given, **fields)
        assert answer.status_code == 200, answer.text
        return np.array([item["embedding"] for item in answer.json()["data"]], np.float32)

    return call


def error(answer):
    assert answer.status_code == 400, answer.text
    return answer.json()["error"]


def test_openais_client_gets_vectors(server, embed):
    with server.openai() as client:
        answer = client.embeddings.create(model="tiny", input=TEXTS, user="u")
        plain = client.embeddings.create(model="tiny", input=TEXTS[0], encoding_format="float")
        short = client.embeddings.create(model="tiny", input=TEXTS[0], dimensions=8)
    found = np.array([item.embedding for item in answer.data], np.float32)
    assert [item.index for item in answer.data] == [0, 1, 2]
    assert found.shape == (3, 64)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-6)
    np.testing.assert_allclose(found, embed(TEXTS), atol=1e-6)
    np.testing.assert_allclose(found[0], plain.data[0].embedding, atol=1e-6)
    assert answer.usage.prompt_tokens == answer.usage.total_tokens == sum(map(len, TEXTS))
    expected = found[0, :8] / np.linalg.norm(found[0, :8])
    np.testing.assert_allclose(short.data[0].embedding, expected, atol=1e-6)


def test_base64_is_the_same_numbers(server, embed):
    answer = server.post("/v1/embeddings", input=TEXTS[0], encoding_format="base64").json()
    content = base64.b64decode(answer["data"][0]["embedding"])
    assert np.frombuffer(content, "<f4").tobytes() == embed(TEXTS[0])[0].tobytes()


def test_inputs_may_be_texts_or_tokens(server, embed):
    ids = [server.frontend.tokenizer.encode(text) for text in TEXTS]
    assert np.allclose(embed(ids), embed(TEXTS), atol=1e-6)
    assert np.allclose(embed(ids[0]), embed(TEXTS[0]), atol=1e-6)


def test_the_pooling_and_the_length_may_be_chosen(server, embed):
    raw = embed(TEXTS[0], normalize=False)[0]
    assert np.linalg.norm(raw) > 1.5
    last = embed(TEXTS[0], pooling="last")[0]
    assert not np.allclose(last, embed(TEXTS[0])[0], atol=1e-2)


def test_the_engines_own_form_has_the_same_vectors(server, embed):
    one = server.post("/encode", text=TEXTS[0], rid="mine").json()
    several = server.post("/encode", text=TEXTS).json()
    np.testing.assert_allclose(one["embedding"], embed(TEXTS[0])[0], atol=1e-6)
    assert one["meta_info"]["id"] == "mine"
    assert one["meta_info"]["prompt_tokens"] == len(TEXTS[0])
    assert one["meta_info"]["finish_reason"] == {"type": "stop"}
    np.testing.assert_allclose([r["embedding"] for r in several], embed(TEXTS), atol=1e-6)


def test_last_tokens_may_come_from_the_cache_and_means_do_not(server):
    text = "a text that nobody has sent before"
    found = {}
    for pooling in ("mean", "last"):
        for when in ("cold", "warm"):
            answer = server.post("/v1/embeddings", input=text, pooling=pooling, cache_salt="salt")
            details = answer.json()["usage"]["prompt_tokens_details"]
            found[pooling, when] = details["cached_tokens"]
    assert found == {
        ("mean", "cold"): 0,
        ("mean", "warm"): 0,
        ("last", "cold"): len(text) - 1,
        ("last", "warm"): len(text) - 1,
    }


@pytest.mark.parametrize(
    ("fields", "param", "why"),
    [
        ({"input": []}, "input", "is empty"),
        ({"input": ""}, "input", "is empty"),
        ({"input": ["a", ""]}, "input[1]", "is empty"),
        ({"input": ["a", 3]}, "input", "no form that is known"),
        ({"input": ["a"] * 2049}, "input", "may have 2048"),
        ({"input": [[1], [1, 999]]}, "input[1]", "token id 999"),
        ({"input": [[1], []]}, "input[1]", "is empty"),
        ({"input": ["a", "b" * 600]}, "input[1]", "600 tokens"),
        ({"input": "b" * 100_000}, "input", "tokens"),
        ({"input": "a", "dimensions": 65}, "dimensions", "give 1 to 64"),
        ({"input": "a", "dimensions": 0}, "dimensions", "give 1 to 64"),
        ({"input": "a", "pooling": "max"}, "pooling", "max"),
        ({"input": "a", "encoding_format": "hex"}, "encoding_format", "hex"),
        ({"input": "a", "stream": True}, "stream", "does not support"),
        ({"input": "a", "priority": 3}, "priority", "priority"),
    ],
)
def test_what_cannot_be_embedded_is_refused_by_its_place(server, fields, param, why):
    told = error(server.post("/v1/embeddings", **fields))
    assert told["param"] == param
    assert why in told["message"]


def test_the_native_form_wants_one_kind_of_input_and_as_many_ids(server):
    assert "either" in error(server.post("/encode"))["message"]
    assert error(server.post("/encode", text=TEXTS, rid=["a"]))["param"] == "rid"


def test_another_model_is_not_there(server):
    answer = server.post("/v1/embeddings", input="a", model="other")
    assert answer.status_code == 404


def test_a_text_that_was_aborted_is_told_by_its_place(server):
    server.post("/pause_generation", mode="in_place")
    try:
        answers = []
        thread = threading.Thread(
            target=lambda: answers.append(server.post("/encode", text=TEXTS, rid=["a", "b", "c"]))
        )
        thread.start()
        while not server.post("/abort_request", rid="b").json()["aborted"]:
            assert thread.is_alive()
    finally:
        server.post("/continue_generation")
    thread.join()
    assert answers[0].status_code == 499
    assert answers[0].json()["error"]["message"].startswith("text[1]: ")


def test_vectors_come_through_the_processes(phloem_serve, write_script):
    server = phloem_serve(write_script([]))
    answer = server.post("/v1/embeddings", input=["ab", "ba", "ab"]).json()
    first, second, third = (np.array(item["embedding"]) for item in answer["data"])
    assert first.shape == (8,)
    assert np.array_equal(first, third)
    assert not np.allclose(first, second)
    tokens = server.post("/v1/tokenize", prompt="ab").json()["tokens"]
    assert server.post("/detokenize", tokens=tokens).json() == {"text": "ab"}
