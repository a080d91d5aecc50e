"""Which notation a model speaks, by its chat template and by the options."""

from __future__ import annotations

import pytest

from phloem.server.parsers import PlainText
from phloem.server.parsers.registry import (
    REASONING_PARSERS,
    TOOL_CALL_PARSERS,
    Notation,
    detect,
    notation_of,
)
from phloem.server.parsers.thinking import ThinkingParser

BAR = "\uff5c"


@pytest.mark.parametrize(
    ("template", "calls", "reasoning"),
    [
        (None, "none", "none"),
        ("{{ messages }}", "none", "none"),
        ("a <tool_call> b", "hermes", "none"),
        ("<tool_call> <think></think>", "hermes", "qwen3"),
        ("<tool_call>\n<function=f>", "none", "none"),
        ("<tool_call>f<arg_key>", "none", "none"),
        ("<|python_tag|>", "llama3-json", "none"),
        ("<|python_start|>", "pythonic", "none"),
        ("[func_name1(a=1)] <|python_tag|>", "pythonic", "none"),
        (
            '{"name": f, "parameters": dictionary of arguments}<|python_start|>',
            "llama3-json",
            "none",
        ),
        ("[TOOL_CALLS]", "mistral", "none"),
        (f"<{BAR}tool▁calls▁begin{BAR}>", "deepseek", "none"),
        (f"<{BAR}Assistant{BAR}>...</think>", "none", "deepseek-r1"),
        (f"<{BAR}Assistant{BAR}><think></think>", "none", "qwen3"),
        ("<|channel|>", "gpt-oss", "gpt-oss"),
    ],
)
def test_a_template_tells_the_notation_by_its_marks(template, calls, reasoning):
    assert detect(template) == Notation(calls, reasoning)
    assert notation_of("auto", "auto", template) == Notation(calls, reasoning)
    assert notation_of("none", "none", template) == Notation()
    assert notation_of("mistral", "auto", template) == Notation("mistral", reasoning)


def test_every_choice_makes_a_parser():
    for calls in TOOL_CALL_PARSERS[1:]:
        for reasoning in REASONING_PARSERS[1:]:
            parser = Notation(calls, reasoning).parser("", ["f"])
            assert parser.feed("a") + parser.end()


@pytest.mark.parametrize(
    ("name", "prompt", "thinks", "inside"),
    [
        ("qwen3", "<|im_start|>assistant\n", True, False),
        ("qwen3", "assistant\n<think>\n", True, True),
        ("qwen3", "assistant\n<think>\n\n</think>\n\n", False, False),
        ("deepseek-r1", "Assistant", True, True),
        ("deepseek-r1", "Assistant</think>", False, False),
        ("none", "<think>", False, False),
    ],
)
def test_a_prompt_may_open_or_close_the_reasoning(name, prompt, thinks, inside):
    notation = Notation("none", name)
    assert notation.thinks(prompt) is thinks
    assert notation.is_plain(prompt, []) is not thinks
    parser = notation.parser(prompt, [])
    assert isinstance(parser, ThinkingParser if thinks else PlainText)
    parts = parser.feed("a") + parser.end()
    assert [type(part).__name__ for part in parts] == ["Reasoning" if inside else "Content"]


def test_answers_with_tools_are_not_plain_where_calls_are_read():
    assert Notation("hermes").is_plain("", [])
    assert not Notation("hermes").is_plain("", ["f"])
    assert Notation().is_plain("", ["f"])
    assert not Notation("gpt-oss", "gpt-oss").is_plain("", [])
