"""`/tokenize` and `/detokenize`: texts, chats and tokens, there and back."""

from __future__ import annotations

import pytest

TEXT = "the sap rises: žluť 🌱"
MESSAGES = [{"role": "user", "content": "Hi"}]


@pytest.fixture(scope="module")
def server(serve, write_script):
    return serve(write_script([]))


def error(answer):
    assert answer.status_code == 400, answer.text
    return answer.json()["error"]


@pytest.mark.parametrize("prefix", ["", "/v1"])
def test_a_text_goes_there_and_back(server, prefix):
    answer = server.post(f"{prefix}/tokenize", prompt=TEXT).json()
    assert answer["count"] == len(answer["tokens"]) == len(TEXT.encode())
    assert answer["max_model_len"] == server.frontend.limits.context_len
    back = server.post(f"{prefix}/detokenize", tokens=answer["tokens"]).json()
    assert back == {"text": TEXT}


def test_several_go_at_once(server):
    answer = server.post("/tokenize", prompt=["ab", "", "c"]).json()
    assert answer["count"] == [2, 0, 1]
    back = server.post("/detokenize", tokens=answer["tokens"]).json()
    assert back == {"text": ["ab", "", "c"]}


def test_tokens_are_spelled_where_asked(server):
    answer = server.post("/tokenize", prompt="a b", return_token_strs=True).json()
    assert answer["token_strs"] == ["a", "Ġ", "b"]


def test_a_chat_has_the_tokens_that_its_answer_counts(server):
    answer = server.post("/tokenize", messages=MESSAGES).json()
    chat = server.post("/v1/chat/completions", messages=MESSAGES, max_tokens=1).json()
    assert answer["count"] == chat["usage"]["prompt_tokens"]
    text = server.post("/detokenize", tokens=answer["tokens"]).json()["text"]
    assert text == "[user]Hi[assistant]"


def test_a_chat_may_be_rendered_as_a_request_says(server):
    def text(messages, **fields):
        answer = server.post("/tokenize", messages=messages, **fields)
        assert answer.status_code == 200, answer.text
        return server.post("/detokenize", tokens=answer.json()["tokens"]).json()["text"]

    assert text(MESSAGES, add_generation_prompt=False) == "[user]Hi"
    begun = [*MESSAGES, {"role": "assistant", "content": "Well"}]
    assert text(begun, continue_final_message=True) == "[user]Hi[assistant]Well"


def test_special_tokens_are_left_out_unless_asked_for(server):
    tokens = [*server.post("/tokenize", prompt="a").json()["tokens"], 0]
    assert server.post("/detokenize", tokens=tokens).json()["text"] == "a"
    kept = server.post("/detokenize", tokens=tokens, skip_special_tokens=False).json()["text"]
    assert kept == "a<end>"


def test_no_tokens_are_no_text(server):
    assert server.post("/detokenize", tokens=[]).json() == {"text": ""}


def test_a_long_text_is_counted_though_no_model_could_take_it(server):
    answer = server.post("/tokenize", prompt="ab" * 50_000).json()
    assert answer["count"] == 100_000 > answer["max_model_len"]


@pytest.mark.parametrize(
    ("path", "fields", "param", "why"),
    [
        ("/tokenize", {}, "prompt", "either"),
        ("/tokenize", {"prompt": "a", "messages": MESSAGES}, "prompt", "either"),
        ("/tokenize", {"prompt": 3}, "prompt", "type"),
        ("/tokenize", {"prompt": "a", "tools": []}, "tools", "messages"),
        ("/tokenize", {"prompt": "a", "add_generation_prompt": True}, "add_generation_prompt", ""),
        ("/tokenize", {"messages": MESSAGES, "chat_template": "x"}, "chat_template", "trust"),
        ("/tokenize", {"messages": []}, "messages", "empty"),
        ("/tokenize", {"messages": MESSAGES, "add_special_tokens": True}, "add_special_tokens", ""),
        ("/tokenize", {"prompt": "a" * 1_000_001}, "prompt", "1000001 characters"),
        ("/tokenize", {"prompt": ["a"] * 2049}, "prompt", "may have 2048"),
        ("/detokenize", {}, "tokens", "missing"),
        ("/detokenize", {"tokens": [1, -1]}, "tokens", "token id -1"),
        ("/detokenize", {"tokens": [[1], [1, 300]]}, "tokens[1]", "token id 300"),
        ("/detokenize", {"tokens": ["a"]}, "tokens", "integer"),
        ("/detokenize", {"tokens": [1, [1]]}, "tokens", "list"),
        ("/detokenize", {"tokens": [True]}, "tokens", "integer"),
        ("/detokenize", {"tokens": [[1]] * 2049}, "tokens", "may have 2048"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(server, path, fields, param, why):
    told = error(server.post(path, **fields))
    assert told["param"] == param
    assert why in told["message"]
