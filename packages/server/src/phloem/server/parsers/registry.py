"""The notations by name, and which of them a model's chat template speaks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from phloem.server.parsers.base import OutputParser, PlainText
from phloem.server.parsers.call_objects import HermesParser, Llama3Parser, MistralParser
from phloem.server.parsers.deepseek import BAR, CALLS_BEGIN, DeepSeekParser
from phloem.server.parsers.harmony import HarmonyParser
from phloem.server.parsers.pythonic import PythonicParser
from phloem.server.parsers.thinking import BEGIN, END, ThinkingParser

AUTO, NONE = "auto", "none"
HARMONY = "gpt-oss"

ToolParser = type[
    HermesParser | Llama3Parser | MistralParser | PythonicParser | DeepSeekParser | HarmonyParser
]

_TOOLS: Mapping[str, ToolParser] = {
    "hermes": HermesParser,
    "qwen": HermesParser,
    "llama3-json": Llama3Parser,
    "mistral": MistralParser,
    "pythonic": PythonicParser,
    "deepseek": DeepSeekParser,
    HARMONY: HarmonyParser,
}
_THINKS_AT_ONCE = {"deepseek-r1": True, "qwen3": False}
"""Whether a text begins with reasoning where the prompt does not say."""

TOOL_CALL_PARSERS = (AUTO, NONE, *_TOOLS)
REASONING_PARSERS = (AUTO, NONE, *_THINKS_AT_ONCE, HARMONY)


@dataclass(frozen=True, slots=True)
class Notation:
    """What a model's outputs are written in."""

    tool_calls: str = NONE
    reasoning: str = NONE

    @property
    def marks(self) -> frozenset[str]:
        """Its marks, which are often tokens of their own."""
        if self.has_channels:
            return frozenset(HarmonyParser.MARKS)
        calls = () if self.tool_calls == NONE else _TOOLS[self.tool_calls].MARKS
        thoughts = () if self.reasoning == NONE else ThinkingParser.MARKS
        return frozenset((*calls, *thoughts))

    @property
    def has_channels(self) -> bool:
        """Whether an output is messages, whose headers say what each is: reasoning and calls may
        come anywhere, and no one sequence of tokens tells that the answer begins.
        """
        return HARMONY in (self.tool_calls, self.reasoning)

    @property
    def end_of_thinking(self) -> str | None:
        """What stands between reasoning and answer; None: there is nothing that always does."""
        return None if self.has_channels or self.reasoning == NONE else END

    def thinks(self, prompt: str) -> bool:
        """Whether the output behind a prompt begins with reasoning, as far as can be known."""
        if self.end_of_thinking is None:
            return self.has_channels
        return not prompt.rstrip().endswith(END)

    def opened(self, prompt: str) -> bool:
        """Whether an output that `thinks` does so for sure; else its first mark tells."""
        at_once = self.has_channels or _THINKS_AT_ONCE[self.reasoning]
        return at_once or prompt.rstrip().endswith(BEGIN)

    def is_plain(self, prompt: str, tools: Collection[str]) -> bool:
        """Whether all of an output is content anyway."""
        return not self.thinks(prompt) and (self.tool_calls == NONE or not tools)

    def parser(
        self,
        prompt: str,
        tools: Collection[str],
        inner: Callable[[], OutputParser] | None = None,
        *,
        separate: bool = True,
    ) -> OutputParser:
        """A parser for one output.

        Args:
            prompt: the text in front of it, whose end may have opened or closed the reasoning.
            tools: names that calls may have.
            inner: makes what reads the text behind the reasoning, where that is known; None: it is
                content with calls.
            separate: whether reasoning is told apart from content.
        """
        if self.has_channels:
            return HarmonyParser(tools, inner and inner(), separate=separate)
        rest = inner() if inner else self._calls(tools)
        if not self.thinks(prompt):
            return rest
        return ThinkingParser(rest, inside=self.opened(prompt), separate=separate)

    def _calls(self, tools: Collection[str]) -> OutputParser:
        if self.tool_calls == NONE or not tools:
            return PlainText()
        return _TOOLS[self.tool_calls](tools)


PLAIN = Notation()
"""None: all is content."""

_DETECTED = (
    (HARMONY, "<|channel|>"),
    ("deepseek", CALLS_BEGIN),
    ("mistral", "[TOOL_CALLS]"),
    # Llama's templates say in words how to call, and some name marks of other notations too.
    ("pythonic", "func_name1("),
    ("llama3-json", '"parameters": dictionary of argument'),
    ("llama3-json", "<|python_tag|>"),
    ("pythonic", "<|python_start|>"),
    ("hermes", "<tool_call>"),
)
_NOT_HERMES = ("<function=", "<arg_key>")
"""Notations of other models between the same marks."""


def detect(chat_template: str | None) -> Notation:
    """The notation whose marks a chat template has."""
    template = chat_template or ""
    calls = next((name for name, mark in _DETECTED if mark in template), NONE)
    if calls == "hermes" and any(mark in template for mark in _NOT_HERMES):
        calls = NONE
    if calls == HARMONY:
        return Notation(HARMONY, HARMONY)
    if END not in template:
        return Notation(calls)
    # A template that opens the reasoning itself says in each prompt whether it did.
    at_once = f"<{BAR}Assistant{BAR}>" in template and BEGIN not in template
    return Notation(calls, "deepseek-r1" if at_once else "qwen3")


def notation_of(tool_calls: str, reasoning: str, chat_template: str | None) -> Notation:
    """That which the options ask for; `auto` is as the template says."""
    found = detect(chat_template)
    return Notation(
        found.tool_calls if tool_calls == AUTO else tool_calls,
        found.reasoning if reasoning == AUTO else reasoning,
    )
