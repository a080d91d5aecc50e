"""A model's chat template: messages in, prompt text out.

Owns the sandbox in which templates run and the checks on messages. Templates come with models from
anywhere, so they see plain data and can reach nothing else. The names that templates expect
(`raise_exception`, `strftime_now`, `tojson`, `generation` blocks) are those of `transformers`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

Message = Mapping[str, Any]
"""`role` and `content`, both strings, and whatever else the template reads."""


class ChatTemplate:
    """A template with the special tokens that it may name."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        self.source = source
        self._special_tokens = dict(special_tokens)

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt text of a conversation; with the opening of the answer if wanted.

        `tools` are OpenAI's objects; a template that does not know of tools leaves them out.
        `variables` are what else it may read, such as `enable_thinking`.

        Raises:
            ValueError: for messages that are malformed (naming their index) or that the template
                refuses, and for a template that is broken.
        """
        ours = {
            "messages": check_messages(messages),
            "add_generation_prompt": add_generation_prompt,
            "tools": tools,
            "documents": None,
        }
        try:
            return self._compiled.render({**(variables or {}), **self._special_tokens, **ours})
        except Exception as error:  # the template is a program of others: it may raise anything
            raise ValueError(
                f"the model's chat template failed on these messages ({error}): check the roles "
                "and their order"
            ) from error

    def check(self) -> None:
        """Refuse a template that cannot be read.

        Raises:
            ValueError: naming the line.
        """
        try:
            _ = self._compiled
        except jinja2.TemplateSyntaxError as error:
            raise ValueError(
                f"the chat template cannot be read (line {error.lineno}: {error.message}): correct "
                "it there"
            ) from error

    @cached_property
    def _compiled(self) -> jinja2.Template:
        return _environment().from_string(self.source)


def check_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Plain copies of well-formed messages, without their absent (None) fields.

    Raises:
        ValueError: naming the index of the first malformed message.
    """
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Sequence):
        raise ValueError(
            f"messages is a {type(messages).__name__}: give a list of objects with role and content"
        )
    if not messages:
        raise ValueError("messages is empty: give at least one message")
    return [_checked(index, message) for index, message in enumerate(messages)]


def _checked(index: int, message: Message) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise ValueError(
            f"message {index} is a {type(message).__name__}: give an object with role and content"
        )
    for name in ("role", "content"):
        value = message.get(name)
        if value is None:
            raise ValueError(f"message {index} has no {name}: give role and content as strings")
        if not isinstance(value, str):
            raise ValueError(
                f"message {index} has a {name} of type {type(value).__name__}: give a string"
            )
    if not message["role"]:
        raise ValueError(f"message {index} has an empty role: give system, user or assistant")
    return {name: value for name, value in message.items() if value is not None}


class _GenerationBlocks(jinja2.ext.Extension):
    """`{% generation %}` marks the assistant's words for training; here its body is rendered."""

    tags = {"generation"}  # noqa: RUF012 - the base class declares it so

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_GenerationBlocks, jinja2.ext.loopcontrols],
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes HTML, which a prompt is not.
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)
