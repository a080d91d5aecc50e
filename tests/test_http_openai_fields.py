"""Fields of completions and chats by the official client, in this process and as `phloem serve`."""

from __future__ import annotations

import openai
import pytest

HELLO = [{"role": "user", "content": "hello"}]
TEXT = "one STOP two"
SKEWED = [{"73": 0.8, "74": 0.2}] * 6
RESPONSES = [
    {"messages": HELLO, "output": TEXT},
    {"prompt": "say", "output": TEXT},
    {"prompt": "coin", "distributions": SKEWED},
    {"prompt": "pony", "output": "🐎"},
]


@pytest.fixture(scope="module", params=["in this process", "phloem serve"])
def server(request, serve, phloem_serve, write_script):
    start = serve if request.param == "in this process" else phloem_serve
    return start(write_script(RESPONSES))


@pytest.fixture(scope="module")
def client(server):
    return server.openai()


def complete(client, prompt="say", **options):
    return client.completions.create(
        model="tiny", prompt=prompt, **{"temperature": 0, "max_tokens": 50} | options
    )


def chat(client, messages=HELLO, **options):
    return client.chat.completions.create(
        model="tiny", messages=messages, **{"temperature": 0, "max_tokens": 50} | options
    )


def ids_of(text):
    from tokenizers import pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    ((shown, _),) = pre_tokenizers.ByteLevel(
        add_prefix_space=False, use_regex=False
    ).pre_tokenize_str(text)
    return [alphabet.index(character) + 1 for character in shown]


def test_best_of_returns_the_likeliest_and_counts_all(client):
    asked = {"temperature": 1, "seed": 5, "max_tokens": 6, "logprobs": 0}
    all_of_them = complete(client, "coin", n=8, **asked)
    mean = {c.text: sum(c.logprobs.token_logprobs) / 6 for c in all_of_them.choices}
    ranked = sorted((c.text for c in all_of_them.choices), key=lambda text: -mean[text])
    best = complete(client, "coin", n=2, best_of=8, **asked)
    assert [choice.text for choice in best.choices] == ranked[:2]
    assert mean[ranked[0]] > mean[ranked[-1]]
    assert [choice.index for choice in best.choices] == [0, 1]
    assert best.usage == all_of_them.usage.model_copy(
        update={"prompt_tokens_details": best.usage.prompt_tokens_details}
    )
    without = complete(client, "coin", best_of=8, **{**asked, "logprobs": None})
    assert without.choices[0].text == ranked[0]
    assert without.choices[0].logprobs is None


def test_best_of_several_prompts_are_in_their_order(client):
    answer = complete(client, ["say", "coin"], n=1, best_of=2)
    assert [choice.text for choice in answer.choices] == [TEXT, "iiiiii"]


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"best_of": 2, "stream": True}, "best_of"),
        ({"best_of": 1, "n": 2}, "best_of"),
        ({"suffix": "end"}, "suffix"),
        ({"extra_body": {"bad_words": ["a"]}}, "bad_words"),
        ({"extra_body": {"input_ids": [1]}}, "input_ids"),
        ({"extra_body": {"return_token_ids": 1}}, "return_token_ids"),
    ],
)
def test_what_is_refused_is_named(client, options, param):
    with pytest.raises(openai.BadRequestError) as caught:
        complete(client, **options)
    assert caught.value.param == param


@pytest.mark.parametrize("skip", [True, False])
def test_offsets_of_an_echo_are_places_in_its_text(server, skip):
    body = {"prompt": "a<end>b", "echo": True, "logprobs": 0, "max_tokens": 4, "temperature": 0}
    made = server.post("/v1/completions", **body, skip_special_tokens=skip)
    (choice,) = made.json()["choices"]
    told = choice["logprobs"]
    assert "<end>" in told["tokens"]
    for token, offset in zip(told["tokens"], told["text_offset"]):
        assert choice["text"].startswith(token, offset) or offset == len(choice["text"])


def test_an_echo_has_the_prompt_and_its_logprobs(client):
    answer = complete(client, echo=True, logprobs=1)
    (choice,) = answer.choices
    assert choice.text == "say" + TEXT
    assert choice.logprobs.tokens[:4] == ["s", "a", "y", "o"]
    assert choice.logprobs.token_logprobs[0] is None
    assert choice.logprobs.text_offset == list(range(len("say" + TEXT) + 1))
    chunks = [chunk.choices[0] for chunk in complete(client, echo=True, logprobs=1, stream=True)]
    assert "".join(chunk.text for chunk in chunks) == choice.text
    assert [t for chunk in chunks for t in chunk.logprobs.tokens] == choice.logprobs.tokens


@pytest.mark.parametrize("field", ["include_stop_str_in_output", "no_stop_trim"])
@pytest.mark.parametrize("create", [complete, chat])
def test_a_stop_string_stays_where_that_is_wanted(client, create, field):
    def text(answer):
        choice = answer.choices[0]
        return choice.text if hasattr(choice, "text") else choice.message.content

    def piece(chunk):
        choice = chunk.choices[0]
        return choice.text if hasattr(choice, "text") else choice.delta.content or ""

    kept = {"stop": "STOP", "extra_body": {field: True}}
    assert text(create(client, **kept)) == "one STOP"
    assert text(create(client, stop="STOP")) == "one "
    assert "".join(map(piece, create(client, stream=True, **kept))) == "one STOP"
    by_token = {"extra_body": {field: True, "stop_token_ids": ids_of("S")}}
    assert text(create(client, **by_token)) == "one S"


def test_ids_go_in_and_come_out_of_completions(client):
    wanted = {"input_ids": ids_of("say"), "return_token_ids": True}
    options = {"temperature": 0, "max_tokens": 50, "extra_body": wanted}
    answer = client.completions.create(model="tiny", prompt=None, **options)
    (choice,) = answer.choices
    assert choice.text == TEXT
    assert choice.prompt_token_ids == ids_of("say")
    assert choice.token_ids[:-1] == ids_of(TEXT)
    assert len(choice.token_ids) == answer.usage.completion_tokens
    chunks = client.completions.create(model="tiny", prompt=None, stream=True, **options)
    parts = [chunk.choices[0] for chunk in chunks]
    assert [token for part in parts for token in part.token_ids] == choice.token_ids
    assert parts[0].prompt_token_ids == ids_of("say")
    assert not any(hasattr(part, "prompt_token_ids") for part in parts[1:])
    lists = {**wanted, "input_ids": [ids_of("say"), ids_of("pony")]}
    both = client.completions.create(model="tiny", prompt=None, extra_body=lists, temperature=0)
    assert [choice.text for choice in both.choices] == [TEXT, "🐎"]
    assert [choice.prompt_token_ids for choice in both.choices] == lists["input_ids"]


def test_ids_go_in_and_come_out_of_chats(server, client):
    prompt = ids_of("[user]hello[assistant]")
    asked = chat(client, extra_body={"return_token_ids": True})
    assert asked.choices[0].message.content == TEXT
    assert asked.choices[0].prompt_token_ids == prompt
    assert asked.choices[0].token_ids[:-1] == ids_of(TEXT)
    body = {"input_ids": prompt, "return_token_ids": True, "temperature": 0, "max_tokens": 50}
    (choice,) = server.post("/v1/chat/completions", **body).json()["choices"]
    assert choice["message"]["content"] == TEXT
    events = server.events("/v1/chat/completions", **body)
    parts = [event["choices"][0] for event in events]
    assert [t for part in parts for t in part.get("token_ids", ())] == choice["token_ids"]
    assert [part["prompt_token_ids"] for part in parts if "prompt_token_ids" in part] == [prompt]
    assert "".join(part["delta"].get("content") or "" for part in parts) == TEXT
    for wrong in ({"messages": HELLO}, {"input_ids": [[1], [2]]}):
        response = server.post("/v1/chat/completions", **body | wrong)
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "input_ids"


def test_tokens_may_be_called_by_their_ids(client):
    wanted = {"return_tokens_as_token_ids": True}
    choice = complete(client, "pony", logprobs=1, max_tokens=2, extra_body=wanted).choices[0]
    first, second, *_ = (f"token_id:{token}" for token in ids_of("🐎"))
    assert choice.logprobs.tokens == [first, second]
    assert first in choice.logprobs.top_logprobs[0]
    said = chat(client, logprobs=True, max_tokens=1, extra_body=wanted).choices[0]
    (entry,) = said.logprobs.content
    assert entry.token == f"token_id:{ids_of('o')[0]}"
    assert bytes(entry.bytes) == b"o"


def test_who_asks_and_other_hints_change_nothing(client):
    assert complete(client, user="somebody").choices[0].text == TEXT
    hints = {"metadata": {"a": "b"}, "service_tier": "auto", "prompt_cache_key": "k"}
    answer = chat(client, user="somebody", safety_identifier="x", **hints)
    assert answer.choices[0].message.content == TEXT


@pytest.mark.parametrize("create", [complete, chat])
def test_usage_and_timings_are_told_by_default(client, create):
    answer = create(client)
    usage = answer.usage
    assert usage.completion_tokens_details.reasoning_tokens == 0
    assert usage.prompt_tokens_details.cached_tokens >= 0
    assert set(answer.timings) == {"queue_ms", "prefill_ms", "decode_ms", "per_token_ms"}
    assert all(value >= 0 for value in answer.timings.values())
    assert answer.retractions == 0
    *others, last = create(client, stream=True)
    assert set(last.timings) == set(answer.timings)
    assert last.choices[0].finish_reason == "stop"
    assert not any(hasattr(chunk, "timings") for chunk in others)


@pytest.mark.parametrize("create", [complete, chat])
def test_each_of_several_choices_has_its_own_timings(client, create):
    answer = create(client, n=2)
    assert not hasattr(answer, "timings")
    assert all(choice.timings["queue_ms"] >= 0 for choice in answer.choices)
    ends = [c.choices[0] for c in create(client, n=2, stream=True) if c.choices[0].finish_reason]
    assert all(end.timings["queue_ms"] >= 0 for end in ends)


@pytest.mark.parametrize("stream", [False, True])
def test_headers_tell_what_is_known_at_the_first_token(client, stream):
    raw = client.completions.with_raw_response.create(
        model="tiny", prompt="say", temperature=0, stream=stream
    )
    assert int(raw.headers["x-phloem-cached-tokens"]) >= 0
    assert float(raw.headers["x-phloem-queue-ms"]) >= 0
    assert float(raw.headers["x-phloem-prefill-ms"]) >= 0
    assert raw.headers["x-request-id"]
    if stream:
        assert list(raw.parse())


def test_why_a_prompt_was_not_cached_is_told_on_request(server):
    def reason(text, path="/v1/completions", **body):
        name = "text" if path == "/generate" else "prompt"
        answer = server.post(path, **{name: text, "return_cache_miss_reason": True}, **body).json()
        return answer.get("meta_info", answer).get("cache_miss")

    salt = {"cache_salt": "reasons"}
    assert reason("first of all", **salt) == {"reason": "first_seen", "at": 0}
    assert reason("first of all", **salt) is None
    assert reason("first no more", **salt) == {"reason": "diverged", "at": 6}
    assert reason("first of all", cache_salt="others")["reason"] == "first_seen"
    assert reason("first of all", "/generate", **salt) is None
    scored = {"prompt_logprobs_from": 0}
    computed = reason("first of all", "/generate", sampling_params=scored, **salt)
    assert computed == {"reason": "recomputed", "at": 0}
    response = server.post("/v1/completions", prompt="first of all", **salt).json()
    assert "cache_miss" not in response
    said = server.post(
        "/v1/chat/completions", messages=HELLO, return_cache_miss_reason=True, cache_salt="new"
    ).json()
    assert said["cache_miss"] == {"reason": "first_seen", "at": 0}
    events = server.events("/v1/completions", prompt="once", return_cache_miss_reason=True)
    assert events[-1]["cache_miss"]["at"] == 0


def test_without_a_cache_that_is_the_reason(serve, write_script):
    server = serve(write_script(RESPONSES), disable_radix_cache=True)
    answer = server.post("/v1/completions", prompt="say", return_cache_miss_reason=True).json()
    assert answer["cache_miss"] == {"reason": "cache_off", "at": 0}


def test_unknown_fields_are_told_of(server):
    """Case SA-03: where fields are not strict, no misspelt one is left out silently."""
    for path, prompt in (
        ("/v1/completions", {"prompt": "say"}),
        ("/v1/chat/completions", {"messages": HELLO}),
        ("/generate", {"text": "say"}),
    ):
        response = server.post(path, temprature=0.5, zzz=1, **prompt)
        assert response.status_code == 200
        assert response.headers["x-phloem-warnings"] == "temprature, zzz"
        assert "x-phloem-warnings" not in server.post(path, **prompt).headers
    wrong = server.post("/v1/completions", prompt="say", zzz=1, temperature=9)
    assert wrong.status_code == 400
    assert wrong.headers["x-phloem-warnings"] == "zzz"


def test_sglangs_names_are_known(server):
    def generate(**body):
        response = server.post("/generate", **body)
        assert response.status_code == 200, response.text
        return response.json()

    asked = {"return_logprob": True, "top_logprobs_num": 1, "logprob_start_len": 0}
    params = {"temperature": 0, "max_new_tokens": 3, "sampling_seed": 1}
    result = generate(text="say", sampling_params=params, return_text_in_logprobs=True, **asked)
    meta = result["meta_info"]
    assert meta["output_token_logprobs"] == [[0, t, c] for t, c in zip(ids_of("one"), "one")]
    assert [entry[1:] for entry in meta["input_token_logprobs"]] == [
        [token, text] for token, text in zip(ids_of("say"), "say")
    ]
    assert meta["input_token_logprobs"][0][0] is None
    assert meta["output_top_logprobs"][0][0][1:] == [ids_of("o")[0], "o"]
    assert meta["e2e_latency"] >= 0
    assert meta["num_retractions"] == 0
    assert meta["finish_reason"]["type"] == "length"
    plain = generate(text=["say", "pony"], sampling_params=params, return_logprob=[True, False])
    assert plain[0]["meta_info"]["output_token_logprobs"][0] == [0, ids_of("o")[0], None]
    assert "output_token_logprobs" not in plain[1]["meta_info"]
    kept = {"temperature": 0, "stop": "STOP", "no_stop_trim": True}
    assert generate(text="say", sampling_params=kept)["text"] == "one STOP"
    ids = generate(text="say", sampling_params=params, return_prompt_token_ids=True)
    assert ids["prompt_token_ids"] == ids_of("say")
    for body, param in (
        ({"logprob_start_len": 0}, "logprob_start_len"),
        ({"return_logprob": True, "logprob_start_len": 9}, "logprob_start_len"),
        ({"return_logprob": True, "top_logprobs_num": 1000}, "top_logprobs_num"),
        ({"token_ids_logprob": [1]}, "token_ids_logprob"),
    ):
        response = server.post("/generate", text="say", **body)
        assert response.status_code == 400
        assert response.json()["error"]["param"] == param
