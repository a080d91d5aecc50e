"""Text over HTTP: whatever a token or a chunk cuts in two, streamed and whole text are one."""

from __future__ import annotations

import pytest

SAY = {"prompt": "say", "max_tokens": 100, "temperature": 0}

TOKENS = ["DEF", "HI", "</think>", " Alice", "?\n"]


@pytest.fixture(scope="module")
def worded(tmp_path_factory, chat_llama):
    """A tokenizer of bytes and some longer tokens; the folder and the ids of a text's pieces."""
    import shutil

    import tokenizers

    folder = tmp_path_factory.mktemp("worded") / "tokenizer"
    shutil.copytree(chat_llama, folder)
    made = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    made.add_tokens([tokenizers.AddedToken(t, normalized=False) for t in TOKENS])
    made.save(str(folder / "tokenizer.json"))

    def ids(*pieces):
        return [i for piece in pieces for i in made.encode(piece).ids]

    return folder, ids


@pytest.fixture(scope="module")
def answers(serve, write_script, worded):
    """Answers `prompt` with `ids`; the whole text and the chunks of a stream, which agree."""
    folder, ids_of = worded
    outputs = {
        "caron": [*ids_of("ď"), 0],
        "emoji": [*ids_of("a🐎b"), 0],
        "broken": [*ids_of("é")[:1], *ids_of(" x"), *ids_of("🐎")[:2], *ids_of("!"), 0],
        "alphabet": [*ids_of("ABC", "DEF", "G", "HI", "J", "KL"), 0],
        "question": [*ids_of("Who", "?", "\n", "x"), 0],
        "joined question": [*ids_of("Who", "?\n", "x"), 0],
        "alice": [*ids_of(" Alice", "!"), 0],
        "think": [*ids_of("a", "</think>", "b"), 0],
        "lines": [*ids_of("a\u2028b\x85c\u2029d\r\ne"), 0],
    }
    script = write_script(
        [{"prompt": p, "output_ids": ids} for p, ids in outputs.items()], tokenizer=str(folder)
    )
    server = serve(script)

    def answer(prompt, **options):
        body = SAY | {"prompt": prompt, **options}
        whole = server.post("/v1/completions", **body)
        assert whole.status_code == 200, whole.text
        (choice,) = whole.json()["choices"]
        chunks = [event["choices"][0] for event in server.events("/v1/completions", **body)]
        texts = [chunk["text"] for chunk in chunks]
        assert "".join(texts) == choice["text"]
        assert chunks[-1]["finish_reason"] == choice["finish_reason"]
        assert all(chunk["finish_reason"] is None for chunk in chunks[:-1])
        native = server.post(
            "/generate",
            text=prompt,
            sampling_params={
                "temperature": 0,
                "stop": options.get("stop"),
                "max_new_tokens": options.get("max_tokens", 100),
            },
        ).json()
        assert native["text"] == choice["text"]
        return choice, texts

    return answer


@pytest.mark.parametrize(("prompt", "text"), [("caron", "ď"), ("emoji", "a🐎b")])
def test_a_character_over_several_tokens_comes_whole(answers, prompt, text):
    """Case ST-01."""
    choice, texts = answers(prompt)
    assert choice["text"] == text
    assert not any("\ufffd" in piece for piece in texts)


def test_broken_bytes_become_replacements_and_harm_nothing(answers):
    """Cases ST-03 and ST-16: bytes that are invalid in the middle of an output."""
    choice, _ = answers("broken")
    assert choice["text"] == "\ufffd x\ufffd!"


def test_an_end_within_a_character_is_flushed_once(answers):
    """Case ST-03 (b)."""
    choice, texts = answers("emoji", max_tokens=3)
    assert choice["text"] == "a\ufffd"
    assert choice["finish_reason"] == "length"
    assert sum("\ufffd" in piece for piece in texts) == 1


def test_nothing_of_a_stop_string_is_sent(answers):
    """Case ST-04: a stop string over four tokens."""
    choice, texts = answers("alphabet", stop=["DEFGHIJ"])
    assert choice["text"] == "ABC"
    assert choice["finish_reason"] == "stop"
    assert choice["matched_stop"] == "DEFGHIJ"
    assert "".join(texts) == "ABC"


def test_a_stop_string_may_begin_and_end_within_tokens(answers):
    """Case ST-04."""
    assert answers("alphabet", stop=["EFGH"])[0]["text"] == "ABCD"


@pytest.mark.parametrize("prompt", ["question", "joined question"])
def test_what_stands_before_a_stop_string_is_sent(answers, prompt):
    """Case ST-05: whether the stop is a token of its own or the end of one."""
    choice, _ = answers(prompt, stop=["\n"])
    assert choice["text"] == "Who?"
    assert choice["matched_stop"] == "\n"


def test_text_held_back_is_sent_once(answers):
    """Case ST-06: `Alice` could have been the beginning of a stop string."""
    choice, texts = answers("alice", stop=["\n", "Alice:"])
    assert choice["text"] == " Alice!"
    assert "".join(texts) == " Alice!"


def test_only_what_begins_a_stop_string_is_held_back(answers):
    """Case ST-07: a long stop string does not cut a token that has nothing to do with it."""
    _, texts = answers("think", stop=["very long, and it never comes"])
    assert "</think>" in texts


def test_line_ends_of_other_alphabets_do_not_break_events(answers):
    choice, _ = answers("lines")
    assert choice["text"] == "a\u2028b\x85c\u2029d\r\ne"
