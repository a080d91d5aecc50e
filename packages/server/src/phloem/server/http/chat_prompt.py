"""A chat's messages to its prompt: by the template, with what the request says to it.

Owns the fields that steer the template: `chat_template`, `chat_template_kwargs`,
`reasoning_effort`, `add_generation_prompt` and `continue_final_message`.
"""

from __future__ import annotations

import sys
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from phloem.server.frontend import Frontend
from phloem.server.http.chat_messages import plain_messages
from phloem.server.http.chat_protocol import ChatRequest
from phloem.server.http.chat_setup import ChatSetup
from phloem.server.http.errors import ApiError, refusing
from phloem.server.http.fitting import check_fits
from phloem.server.parsers.registry import HARMONY
from phloem.server.parsers.thinking import BEGIN, END
from phloem.server.tokenizer import Tokenizer

_MANY = 1_000
"""Messages that are looked at one by one without a thread."""
_OURS = ("messages", "tools", "documents", "add_generation_prompt")
THINKING = ("enable_thinking", "thinking")
"""What templates call the switch for reasoning."""
_LITTLE_EFFORT = ("none", "minimal")
_EFFORTS = (*_LITTLE_EFFORT, "low", "medium", "high")
_ASKS_NOTHING: Mapping[str, Any] = {
    "chat_template": None,
    "chat_template_kwargs": {},
    "reasoning_effort": None,
    "add_generation_prompt": True,
    "continue_final_message": False,
}
"""The fields that steer the template, and a value of each that changes nothing."""


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A prompt, and what the output goes on with."""

    ids: list[int]
    before: str
    """The text in front of the output, as far as it says whether reasoning has begun or ended."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """What is to be put into a template; checked, and not rendered yet."""

    tokenizer: Tokenizer
    messages: list[dict[str, Any]]
    variables: Mapping[str, Any]
    opens_answer: bool
    """Whether the template opens the answer."""
    continues: bool
    """Whether the output goes on with the last message."""

    def prompt(self, frontend: Frontend, tools: Sequence[dict[str, Any]] | None) -> ChatPrompt:
        """The prompt; rendering and tokenizing take time.

        Raises:
            ApiError, ValueError: the template refuses it, or it is too long.
        """
        text = self._continued(tools) if self.continues else self._render(self.messages, tools)
        check_fits(frontend.tokenizer, frontend.limits, text, "messages", add_special_tokens=False)
        # The template writes all special tokens itself.
        ids = self.tokenizer.encode(text, add_special_tokens=False)
        return ChatPrompt(ids, self._thoughts() if self.continues else text[-64:])

    def _render(
        self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]] | None
    ) -> str:
        return self.tokenizer.render_chat(
            messages, self.opens_answer, tools=tools, variables=self.variables
        )

    def _continued(self, tools: Sequence[dict[str, Any]] | None) -> str:
        """The text up to the end of the last message's content, which a mark stands for."""
        mark = uuid.uuid4().hex
        last = self.messages[-1] | {"content": self.messages[-1]["content"] + mark}
        before, found, _ = self._render([*self.messages[:-1], last], tools).partition(mark)
        if not found:
            raise ApiError(
                "continue_final_message is true, and the chat template does not show the last "
                "message as it is: leave it out",
                param="continue_final_message",
            )
        return before

    def _thoughts(self) -> str:
        """A text that says what the content that is continued says about reasoning."""
        content = self.messages[-1]["content"]
        return BEGIN if content.rfind(BEGIN) > content.rfind(END) else END


def chat_prompt(
    frontend: Frontend,
    setup: ChatSetup,
    request: ChatRequest,
    tools: Sequence[dict[str, Any]] | None,
) -> ChatPrompt:
    """The prompt of a request's messages; this takes time.

    Raises:
        ApiError, ValueError: it is malformed, or too long, or the template refuses it.
    """
    talk = conversation(frontend, setup, request, request.messages or ())
    return talk.prompt(frontend, tools)


def refuse_template_fields(request: ChatRequest) -> None:
    """Refuse what steers a template that is not used, beside `input_ids`.

    Raises:
        ApiError: naming the field.
    """
    for name, nothing in _ASKS_NOTHING.items():
        if getattr(request, name) not in (None, nothing):
            raise ApiError(
                f"{name} is given beside input_ids, and ids are taken as they are, without a "
                "template: leave one of them out",
                param=name,
            )


def work_of(messages: Sequence[Any], tools: Sequence[dict[str, Any]] | None) -> int:
    """How much work a prompt is, as characters of plain text; a lot where there are other things,
    which are not looked at.
    """
    if tools or len(messages) > _MANY:
        return sys.maxsize
    characters = 0
    for message in messages:
        content = message.get("content") if isinstance(message, dict) else None
        if not isinstance(content, str) or "tool_calls" in message:
            return sys.maxsize
        characters += len(content) + len(message)
    return characters


def conversation(
    frontend: Frontend, setup: ChatSetup, request: ChatRequest, messages: Sequence[Any]
) -> Conversation:
    """What a request puts into a template.

    Raises:
        ApiError: it is malformed, or the model's template has nothing of the kind.
    """
    tokenizer = _tokenizer(frontend, setup, request)
    template = tokenizer.chat_template or ""
    reasoning = "thinking" if setup.notation.reasoning == HARMONY else "reasoning_content"
    with refusing("messages"):
        plain = plain_messages(
            messages,
            developers='"developer"' in template,
            reasoning=reasoning,
            short_ids=setup.notation.tool_calls == "mistral",
        )
    continues = bool(request.continue_final_message)
    if continues and request.add_generation_prompt:
        raise ApiError(
            "continue_final_message and add_generation_prompt are both true, and an answer is "
            "either continued or begun: leave one of them out",
            param="continue_final_message",
        )
    if continues and plain[-1]["role"] != "assistant":
        raise ApiError(
            f"continue_final_message is true, and the last message is of role {plain[-1]['role']}: "
            "end with an assistant's message",
            param="continue_final_message",
        )
    if continues and "tool_calls" in plain[-1]:
        raise ApiError(
            "continue_final_message is true, and the last message has tool_calls, behind which "
            "there is no content to go on with: leave one of them out",
            param="continue_final_message",
        )
    opens = not continues and request.add_generation_prompt is not False
    return Conversation(tokenizer, plain, _variables(request, template), opens, continues)


def _tokenizer(frontend: Frontend, setup: ChatSetup, request: ChatRequest) -> Tokenizer:
    if request.chat_template is None:
        return frontend.tokenizer
    if not setup.trusts_templates:
        raise ApiError(
            "chat_template is given, which this server takes from its own user alone "
            "(--trust-request-chat-template lets requests bring one): leave it out",
            param="chat_template",
            code="unsupported_parameter",
        )
    with refusing("chat_template"):
        return frontend.tokenizer.with_chat_template(request.chat_template)


def _variables(request: ChatRequest, template: str) -> dict[str, Any]:
    given = request.chat_template_kwargs or {}
    for name in _OURS:
        if name in given:
            raise ApiError(
                f"chat_template_kwargs has {name}, which the server gives to the template itself: "
                "leave it out",
                param="chat_template_kwargs",
            )
    return _effort(request.reasoning_effort, template) | given


def _effort(effort: str | None, template: str) -> dict[str, Any]:
    """What a template is told of the effort: itself, or whether to think at all."""
    if effort is None:
        return {}
    if effort not in _EFFORTS:
        raise ApiError(
            f"reasoning_effort is {effort[:100]!r}: give one of {', '.join(_EFFORTS)}",
            param="reasoning_effort",
        )
    switches = {name: effort not in _LITTLE_EFFORT for name in THINKING if name in template}
    if "reasoning_effort" in template:
        return {"reasoning_effort": effort} | switches
    if not switches:
        raise ApiError(
            f"reasoning_effort is {effort[:100]!r}, and this model's chat template knows of no "
            "effort: leave it out",
            param="reasoning_effort",
            code="unsupported_parameter",
        )
    return switches
