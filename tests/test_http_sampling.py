"""Sampling and logprobs over HTTP: parameters arrive, and every choice has what is its own."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

PATH = "/v1/completions"
A, B, C = 65, 66, 67
"""Token ids of `a`, `b` and `c`."""


@pytest.fixture(scope="module")
def llama(serve, chat_llama):
    return serve(chat_llama)


@pytest.fixture(scope="module")
def coin(serve, write_script):
    step = {str(A): 0.5, str(B): 0.3, str(C): 0.2}
    return serve(write_script([{"prompt_ids": [], "distributions": [step] * 200}]))


def choices(server, **body):
    response = server.post(PATH, **body)
    assert response.status_code == 200, response.text
    return response.json()["choices"]


def test_a_seed_gives_the_same_in_company(llama):
    """Case SA-01."""
    seeded = {"prompt": "abc", "seed": 42, "temperature": 0.8, "max_tokens": 20}
    alone = choices(llama, **seeded)[0]["text"]
    others = [{"prompt": f"x{i}", "temperature": 0.8, "max_tokens": 20} for i in range(3)]
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda body: choices(llama, **body), [seeded, *others] * 4))
    assert {result[0]["text"] for result in results[::4]} == {alone}


def test_a_repetition_penalty_has_an_effect(llama):
    """Case SA-03; its arithmetic is tested with the sampler."""
    plain, penalized = (
        choices(llama, prompt="abcabc", temperature=0, max_tokens=40, repetition_penalty=p)
        for p in (1, 1.8)
    )
    assert plain != penalized


@pytest.mark.parametrize("bias", [-100, 100])
def test_a_bias_holds_for_each_choice_and_step(llama, bias):
    """Case SA-04."""
    response = llama.post(
        "/generate",
        text="abc",
        sampling_params={
            "n": 10,
            "max_new_tokens": 10,
            "logit_bias": {str(A): bias},
            "temperature": 1,
            "frequency_penalty": 0.1,
        },
    )
    for result in response.json():
        ids = result["output_ids"]
        assert (A not in ids) if bias < 0 else (ids == [A] * 10)


def test_prompt_logprobs_are_the_same_twice(llama):
    """Case SA-06: a prompt of a block and one token, cold and warm."""
    body = {"prompt": list(range(1, 34)), "echo": True, "logprobs": 1, "max_tokens": 1}
    first, second = (choices(llama, temperature=0, **body)[0]["logprobs"] for _ in range(2))
    assert len(first["token_logprobs"]) == 34
    assert first["token_logprobs"][0] is None
    assert second["tokens"] == first["tokens"]
    assert second["token_logprobs"][1:] == pytest.approx(first["token_logprobs"][1:], abs=1e-4)


def test_filters_do_not_change_logprobs(llama):
    """Case SA-07: logprobs are the model's own."""
    first, second = (
        choices(llama, prompt="abc", temperature=0, max_tokens=6, logprobs=3, top_p=top_p)
        for top_p in (1, 0.0001)
    )
    assert first == second
    assert all(len(top) >= 3 for top in first[0]["logprobs"]["top_logprobs"])


def test_a_prompt_is_scored_without_generating(llama):
    """Case SA-10: what lm-eval's loglikelihood asks for."""
    for prompt in ("žebra", [A, B, C]):
        response = llama.post(PATH, prompt=prompt, echo=True, logprobs=1, max_tokens=0).json()
        (choice,) = response["choices"]
        text = prompt if isinstance(prompt, str) else "abc"
        assert choice["text"] == text
        assert response["usage"]["completion_tokens"] == 0
        logprobs = choice["logprobs"]
        count = len(text.encode())
        assert {name: len(values) for name, values in logprobs.items()} == dict.fromkeys(
            ("tokens", "token_logprobs", "top_logprobs", "text_offset"), count
        )
        assert logprobs["token_logprobs"][0] is None
        assert logprobs["top_logprobs"][0] is None
        for chosen, top in zip(logprobs["token_logprobs"][1:], logprobs["top_logprobs"][1:]):
            assert chosen in top.values()
            assert chosen <= max(top.values()) <= 0
    assert choice["finish_reason"] == "length"


def test_names_of_tokens_and_their_offsets_spell_the_text(coin):
    (choice,) = choices(
        coin, prompt="ž", temperature=0, max_tokens=3, echo=True, logprobs=0, ignore_eos=True
    )
    assert choice["text"] == "žaaa"
    logprobs = choice["logprobs"]
    assert logprobs["tokens"] == ["bytes:\\xc5", "bytes:\\xbe", "a", "a", "a"]
    assert logprobs["text_offset"] == [0, 1, 1, 2, 3]
    assert logprobs["top_logprobs"][2] == {"a": logprobs["token_logprobs"][2]}


@pytest.mark.parametrize("echo", [False, True])
def test_streamed_logprobs_joined_are_the_whole(llama, echo):
    body = {"prompt": "abc", "temperature": 0, "max_tokens": 8, "logprobs": 2, "echo": echo}
    whole = choices(llama, **body)[0]
    parts = [event["choices"][0] for event in llama.events(PATH, **body)]
    assert "".join(part["text"] for part in parts) == whole["text"]
    for name, values in whole["logprobs"].items():
        joined = [value for part in parts for value in part["logprobs"][name]]
        if name in ("tokens", "text_offset"):
            assert joined == values
    assert len(joined) == 8 + 3 * echo


def test_choices_of_several_prompts_are_side_by_side(coin):
    """Case AP-13: index = prompt * n + i, each with its own logprobs."""
    body = {"prompt": ["a", "b"], "n": 2, "logprobs": 1, "max_tokens": 4, "echo": True, "seed": 1}
    found = choices(coin, **body)
    assert [choice["index"] for choice in found] == [0, 1, 2, 3]
    assert [choice["text"][0] for choice in found] == ["a", "a", "b", "b"]
    for choice in found:
        assert "".join(choice["logprobs"]["tokens"]) == choice["text"]
    streamed = [""] * 4
    for event in coin.events(PATH, **body):
        (part,) = event["choices"]
        streamed[part["index"]] += part["text"]
    assert streamed == [choice["text"] for choice in found]


def test_what_siblings_share_is_no_cache_hit(llama):
    """Case AP-15: nothing was cached before a prompt was first seen."""
    body = {"prompt": "never seen before, never", "n": 4, "max_tokens": 2}
    first, second = (llama.post(PATH, **body).json()["usage"] for _ in range(2))
    assert first["prompt_tokens"] == 24
    assert first["prompt_tokens_details"]["cached_tokens"] == 0
    assert second["prompt_tokens_details"]["cached_tokens"] > 0


def test_salts_share_no_prefix(llama):
    """Case RC-10."""
    body = {"prompt": "the same prompt for everybody", "max_tokens": 1}

    def cached(**salt):
        usage = llama.post(PATH, **body, **salt).json()["usage"]
        return usage["prompt_tokens_details"]["cached_tokens"]

    for salt in ({}, {"cache_salt": ""}, {"cache_salt": "a"}, {"cache_salt": "b"}):
        assert cached(**salt) == 0
        assert cached(**salt) > 0


def test_special_tokens_are_shown_where_asked(coin):
    body = {"prompt": "a", "temperature": 0, "max_tokens": 200, "ignore_eos": True}
    hidden = choices(coin, **body)[0]["text"]
    shown = choices(coin, **body, skip_special_tokens=False)[0]["text"]
    assert shown == hidden + "<end>"


def test_stops_come_as_ids_too(coin):
    (choice,) = choices(
        coin, prompt="a", seed=2, max_tokens=50, stop_token_ids=[B, C], ignore_eos=True
    )
    assert choice["finish_reason"] == "stop"
    assert choice["matched_stop"] in (B, C)
    assert set(choice["text"]) <= {"a"}
