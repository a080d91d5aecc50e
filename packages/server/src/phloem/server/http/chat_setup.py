"""How a server reads and writes chats: the notation of its model, and what requests may change."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from phloem.server.chat_template import ChatTemplate
from phloem.server.http_config import HttpArgs
from phloem.server.parsers.registry import AUTO, PLAIN, Notation, notation_of
from phloem.server.parsers.thinking import BEGIN
from phloem.server.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatOptions:
    """What a user says about it."""

    tool_call_parser: str = AUTO
    reasoning_parser: str = AUTO
    chat_template: str | None = None
    """The source of a template that takes the place of the model's."""
    trust_request_chat_template: bool = False


def chat_options(http: HttpArgs) -> ChatOptions:
    """What the options of the HTTP server say about it; the template is read from its file.

    Raises:
        ValueError: it cannot be read.
    """
    source = None
    if http.chat_template is not None:
        try:
            source = Path(http.chat_template).expanduser().read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise ValueError(
                f"chat_template {http.chat_template!r} cannot be read ({error}): name a file with "
                "a chat template"
            ) from error
        ChatTemplate(source, {}).check()
    return ChatOptions(
        tool_call_parser=http.tool_call_parser,
        reasoning_parser=http.reasoning_parser,
        chat_template=source,
        trust_request_chat_template=http.trust_request_chat_template,
    )


@dataclass(frozen=True, slots=True)
class ChatSetup:
    """What follows from the options and the model."""

    notation: Notation = PLAIN
    shown_ids: tuple[int, ...] = ()
    """Special tokens that are marks of the notation, and so not skipped."""
    end_of_thinking: tuple[int, ...] = ()
    """The tokens behind which the answer begins; empty: there is no reasoning."""
    begin_of_thinking: int | None = None
    """The token that opens it, if it is one."""
    trusts_templates: bool = False
    """Whether requests may bring a template, which is a program."""

    @classmethod
    def of(cls, options: ChatOptions, tokenizer: Tokenizer) -> ChatSetup:
        """That of a server; the tokenizer has the template already."""
        notation = notation_of(
            options.tool_call_parser, options.reasoning_parser, tokenizer.chat_template
        )
        ids = [tokenizer.token_to_id(mark) for mark in sorted(notation.marks)]
        end = notation.end_of_thinking
        return cls(
            notation,
            tuple(id for id in ids if id is not None),
            () if end is None else tuple(tokenizer.encode(end, add_special_tokens=False)),
            None if end is None else tokenizer.token_to_id(BEGIN),
            options.trust_request_chat_template,
        )


NO_NOTATION = ChatSetup()
"""All is content, and requests bring no template."""
