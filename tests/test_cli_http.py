"""`phloem chat` and `phloem generate` against a running server."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from phloem.server.background import running_server
from phloem.server.cli import main
from phloem.server.config import ServerArgs

HELLO = [{"role": "user", "content": "Hello"}]
SCRIPT = {
    "context_length": 64,
    "responses": [
        {"prompt": "Say", "output": " Příliš 🌳 STOP nothing"},
        {"messages": HELLO, "output": "Hi!"},
        {
            "messages": [
                *HELLO,
                {"role": "assistant", "content": "Hi!"},
                {"role": "user", "content": "And?"},
            ],
            "output": "And bye.",
        },
    ],
}


@pytest.fixture(scope="module")
def phloem(smollm2, tmp_path_factory):
    """Run a command against a server."""
    file = tmp_path_factory.mktemp("cli") / "script.json"
    file.write_text(json.dumps(SCRIPT))
    with running_server(ServerArgs(model=f"scripted:{file}")) as server:

        def run(command, *args, stdin=None):
            args = [command, "--base-url", server.url, *args]
            return CliRunner().invoke(main, args, input=stdin, catch_exceptions=False)

        yield run


def test_generate_streams_characters_whole_and_cuts_the_stop_string(phloem):
    done = phloem("generate", "Say", "--stop", "STOP", "--temperature", "0")
    assert (done.exit_code, done.stdout) == (0, " Příliš 🌳 \n")
    assert "prompt tokens cached" in done.stderr


def test_several_prompts_are_json_lines_with_what_the_server_tells(phloem):
    done = phloem("generate", "Say", "unknown", "--json", "--max-new-tokens", "3")
    first, second = map(json.loads, done.stdout.splitlines())
    assert first["prompt"] == "Say"
    meta = first["meta_info"]
    assert (meta["completion_tokens"], meta["finish_reason"]) == (3, {"type": "length"})
    assert meta["timings"]["ttft"] > 0
    assert second["meta_info"]["finish_reason"] == {"type": "stop"}


def test_jsonl_may_hold_messages_and_ids(phloem, tmp_path):
    lines = [{"messages": HELLO}, {"input_ids": [1, 2], "sampling_params": {"max_new_tokens": 1}}]
    file = tmp_path / "in.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)))
    done = phloem("generate", "--jsonl", str(file))
    first, second = map(json.loads, done.stdout.splitlines())
    assert (first["text"], second["meta_info"]["prompt_tokens"]) == ("Hi!", 2)


def test_a_chat_is_a_conversation(phloem):
    done = phloem("chat", "--temperature", "0", "--max-new-tokens", "8", stdin="Hello\nAnd?\n")
    assert (done.exit_code, done.stdout) == (0, "Hi!\nAnd bye.\n")


def test_a_refusal_is_a_usage_error_in_the_servers_words(phloem):
    done = phloem("generate", "word " * 100)
    assert done.exit_code == 2
    assert "64" in done.stderr
    assert "HTTP status 400" in done.stderr


def test_a_prompt_that_is_refused_harms_only_itself(phloem):
    done = phloem("generate", "word " * 100, "Say", "--json", "--max-new-tokens", "3")
    refused, answered = map(json.loads, done.stdout.splitlines())
    assert done.exit_code == 1
    assert "HTTP status 400" in refused["error"]
    assert answered["meta_info"]["completion_tokens"] == 3
