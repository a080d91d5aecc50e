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


UNSUPPORTED_IN_CHAT: Mapping[str, Collection[Any]] = {
    **UNSUPPORTED,
    "add_generation_prompt": (True,),
    "audio": NEVER,
    "chat_template": NEVER,
    "chat_template_kwargs": NEVER,
    "continue_final_message": OFF,
    "documents": NEVER,
    "echo": OFF,
    "function_call": ("none",),
    "functions": ([],),
    "modalities": (["text"],),
    "reasoning_effort": NEVER,
    "verbosity": NEVER,
    "web_search_options": NEVER,
}
