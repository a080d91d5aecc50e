from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from phloem.server.cli import main


@pytest.fixture
def script(byte_level_folder, tmp_path):
    """A scripted model that answers everybody."""
    for file in byte_level_folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"")
    responses = [
        {"prompt": "Say", "output": " Příliš 🌳 STOP nothing"},
        {"messages": [{"role": "user", "content": "Hi"}], "output": "Hello!"},
    ]
    file = tmp_path / "script.json"
    file.write_text(json.dumps({"tokenizer": str(tmp_path), "responses": responses}))
    return f"scripted:{file}"


def run_our_engine(*args, stdin=None):
    return CliRunner().invoke(main, args, input=stdin, catch_exceptions=False)


def test_our_own_engine_streams_and_stops(script):
    done = run_our_engine("generate", "Say", "--model", script, "--stop", "STOP")
    assert (done.exit_code, done.stdout) == (0, " Příliš 🌳 \n")
    several = run_our_engine("generate", "Say", "--json", "--model", script, "--stop", "STOP")
    result = json.loads(several.stdout)
    assert result["text"] == " Příliš 🌳 "
    assert result["meta_info"]["finish_reason"] == {"type": "stop", "matched": "STOP"}


def test_our_own_engine_chats(script):
    done = run_our_engine("chat", "--model", script, stdin="Hi\n")
    assert (done.exit_code, done.stdout) == (0, "Hello!\n")


def test_a_prompt_too_long_for_our_own_engine_ends_with_2(script):
    done = run_our_engine("generate", "x" * 50, "--model", script, "--context-length", "16")
    assert done.exit_code == 2
    assert "50" in done.stderr
