"""What `POST /v1/responses` takes, field by field; see `phloem.server.http.protocol`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Literal

import msgspec

from phloem.server.http.protocol import NEVER, OFF


class ReasoningOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """How a model thinks, and how that is shown."""

    effort: str | None = None
    summary: Literal["auto", "detailed"] | None = None
    """Given, the reasoning is told as its own summary, in full; else as it is."""
    generate_summary: Literal["auto", "detailed"] | None = None
    """The old name of `summary`."""


class TextOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What the text of an answer is."""

    format: dict[str, Any] | None = None
    verbosity: Literal["medium"] | None = None
    """Of which there is one."""


class ObfuscationOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Extras of a stream, of which none is served."""

    include_obfuscation: Literal[False] | None = None


class ResponseRequest(msgspec.Struct, kw_only=True):
    """The body of `POST /v1/responses`, and of `POST /v1/responses/input_tokens`."""

    model: str | None = None
    input: str | list[Any] | None = None
    """A text of the user's, or items; or else `input_ids`."""
    instructions: str | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    stream: bool | None = None
    stream_options: ObfuscationOptions | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_logprobs: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    reasoning: ReasoningOptions | None = None
    text: TextOptions | None = None
    include: list[str] | None = None
    metadata: dict[str, str] | None = None
    user: str | None = None

    # As in chats.
    input_ids: list[Any] | None = None
    return_token_ids: bool | None = None
    """Whether the response has `token_ids`, and the prompt's as `prompt_token_ids`."""
    return_cache_miss_reason: bool | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    min_tokens: int | None = None
    logit_bias: dict[str, float] | None = None
    grammar_options: dict[str, Any] | None = None
    cache_salt: str | None = None
    timeout: float | None = None
    queue_timeout: float | None = None
    priority: int | None = None
    tenant: str | None = None


AS_IN_CHATS = (
    "model",
    "stream",
    "temperature",
    "top_p",
    "parallel_tool_calls",
    *ResponseRequest.__struct_fields__[ResponseRequest.__struct_fields__.index("input_ids") :],
)
"""Fields that mean the same in a chat."""

LOGPROBS = "message.output_text.logprobs"
ENCRYPTED = "reasoning.encrypted_content"
INCLUDABLE = (LOGPROBS, ENCRYPTED)
"""What `include` may name. Reasoning is always there in plain text, which comes back as well as an
encrypted one would, so that the latter asks for nothing.
"""

UNSUPPORTED_IN_RESPONSES: Mapping[str, Collection[Any]] = {
    "access_programs": NEVER,
    "background": OFF,
    "background_options": NEVER,
    "context_management": ([],),
    "conversation": NEVER,
    "image": NEVER,
    "moderation": NEVER,
    "prompt": NEVER,
    "truncation": ("disabled",),
}

IGNORED_IN_RESPONSES = frozenset(
    (
        # Names of callers, hints, and billing: they change no output.
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        # Of tools that the server itself would use: there are none.
        "max_tool_calls",
    )
)
