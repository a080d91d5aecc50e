"""What a server is told of its chats, and what follows from it."""

from __future__ import annotations

import pytest
import tokenizers

from phloem.server.http.chat_setup import ChatOptions, ChatSetup, chat_options
from phloem.server.http_config import HttpArgs
from phloem.server.parsers.registry import Notation
from phloem.server.tokenizer import Tokenizer

TEMPLATE = "{{ messages[0].content }}<think></think><tool_call>"


@pytest.fixture
def tokenizer(byte_level):
    """One of bytes with two marks as tokens."""
    backend = tokenizers.Tokenizer.from_str(byte_level.backend.to_str())
    backend.add_special_tokens(["</think>", "<tool_call>"])
    return Tokenizer(backend, chat_template=TEMPLATE)


def test_the_template_tells_what_is_read_and_which_tokens_are_shown(tokenizer):
    setup = ChatSetup.of(ChatOptions(), tokenizer)
    end, call = map(tokenizer.token_to_id, ("</think>", "<tool_call>"))
    assert setup.notation == Notation("hermes", "qwen3")
    assert set(setup.shown_ids) == {end, call}
    assert setup.end_of_thinking == (end,)
    assert not setup.trusts_templates


def test_without_notations_nothing_is_shown(tokenizer):
    options = ChatOptions(tool_call_parser="none", reasoning_parser="none")
    assert ChatSetup.of(options, tokenizer) == ChatSetup()


def test_a_template_is_read_from_its_file(tmp_path):
    file = tmp_path / "t.jinja"
    file.write_text("{{ messages }}\u00e9", encoding="utf-8")
    options = chat_options(HttpArgs(chat_template=str(file), tool_call_parser="mistral"))
    assert options == ChatOptions(chat_template="{{ messages }}\u00e9", tool_call_parser="mistral")
    assert chat_options(HttpArgs()) == ChatOptions()


@pytest.mark.parametrize("content", [b"{% if %}", b"\xff", None])
def test_a_template_that_cannot_be_read_is_refused(tmp_path, content):
    file = tmp_path / "t.jinja"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ValueError, match=r"chat.template"):
        chat_options(HttpArgs(chat_template=str(file)))


def test_an_unknown_notation_is_refused():
    with pytest.raises(ValueError, match="tool_call_parser"):
        HttpArgs(tool_call_parser="xml")


def test_another_template_leaves_the_tokenizer_as_it_is(tokenizer):
    other = tokenizer.with_chat_template("{{ mood }}{{ messages[0].role }}{{ tools }}")
    messages = [{"role": "user", "content": "x"}]
    variables = {"mood": "!", "messages": 5, "tools": 5, "self": 5}
    assert other.render_chat(messages, tools=None, variables=variables) == "!userNone"
    assert tokenizer.render_chat(messages).startswith("x")
    assert tokenizer.chat_template == TEMPLATE
