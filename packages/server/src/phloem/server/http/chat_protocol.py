"""What `POST /v1/chat/completions` takes, field by field; see `phloem.server.http.protocol`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Literal

import msgspec

from phloem.server.http.protocol import NEVER, OFF, UNSUPPORTED, OpenAIRequest


class FunctionSpec(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A function that a model may call."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    """The JSON schema of its arguments, which are an object; None: it takes none."""
    strict: bool | None = None
    """Changes nothing: where a call is made sure of, its arguments always keep to the schema."""


class ToolSpec(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A tool that a model may use."""

    type: Literal["function"]
    function: FunctionSpec


class ChatRequest(OpenAIRequest, kw_only=True):
    """The body of `POST /v1/chat/completions`."""

    messages: list[Any] | None = None
    """The conversation; or else `input_ids`, the tokens that the template would make of it."""
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[ToolSpec] | None = None
    tool_choice: Any = None
    """See `phloem.server.http.tools`."""
    parallel_tool_calls: bool | None = None
    """Whether there may be more calls than one; of more, the first is told."""

    chat_template: str | None = None
    """A template in the place of the model's, where the server trusts those of requests."""
    chat_template_kwargs: dict[str, Any] | None = None
    """What the template may read beside the messages, such as `enable_thinking`."""
    add_generation_prompt: bool | None = None
    """Whether the template opens the answer; so it does where this is left out."""
    continue_final_message: bool | None = None
    """Whether the output goes on with the last message instead."""
    reasoning_effort: str | None = None
    """How much to think; as the model's template knows it."""
    separate_reasoning: bool | None = None
    """Whether reasoning is told apart from content, as it is where this is left out."""
    stream_reasoning: bool | None = None
    """Whether a stream tells reasoning as it comes, likewise, or all of it at its end."""
    max_thinking_tokens: int | None = None
    """Tokens of reasoning after which it is brought to its end."""


UNSUPPORTED_IN_CHAT: Mapping[str, Collection[Any]] = {
    **UNSUPPORTED,
    "audio": NEVER,
    "documents": NEVER,
    "echo": OFF,
    "function_call": ("none",),
    "functions": ([],),
    "modalities": (["text"],),
    "verbosity": NEVER,
    "web_search_options": NEVER,
}
