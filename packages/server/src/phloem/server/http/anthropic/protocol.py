"""What `POST /v1/messages` takes, field by field; see `phloem.server.http.protocol`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Literal

import msgspec

from phloem.server.http.protocol import NEVER


class CacheControl(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """That the prompt up to here is worth keeping."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] = "5m"


class Tool(msgspec.Struct, kw_only=True):
    """A tool; those that the server itself would run have other types."""

    name: str
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None
    """Changes nothing: where a call is made sure of, its input always keeps to the schema."""
    cache_control: CacheControl | None = None
    defer_loading: Literal[False] | None = None


class ToolChoice(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Which tools may or must be used."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Whether, and how much, the model thinks before it answers."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: int | None = None
    display: Literal["summarized", "omitted"] | None = None
    """What is shown of it: all of it, since nobody here summarizes, or nothing."""


class OutputConfig(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """How much work is done for an answer, and what its text keeps to."""

    effort: str | None = None
    format: dict[str, Any] | None = None


class Metadata(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """For whom a request is; changes no output."""

    user_id: str | None = None


class CountRequest(msgspec.Struct, kw_only=True):
    """The body of `POST /v1/messages/count_tokens`."""

    model: str
    messages: list[Any] | None = None
    """Turns of the user's and the assistant's; or else `input_ids`."""
    system: str | list[Any] | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    cache_control: CacheControl | None = None
    """As that of the last block."""
    input_ids: list[Any] | None = None


class MessagesRequest(CountRequest, kw_only=True):
    """The body of `POST /v1/messages`."""

    max_tokens: int
    stream: bool | None = None
    stop_sequences: list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    metadata: Metadata | None = None

    # As in chats.
    return_token_ids: bool | None = None
    """Whether the message has `token_ids`, and the prompt's as `prompt_token_ids`."""
    return_cache_miss_reason: bool | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    ignore_eos: bool | None = None
    min_tokens: int | None = None
    grammar_options: dict[str, Any] | None = None
    cache_salt: str | None = None
    timeout: float | None = None
    queue_timeout: float | None = None
    priority: int | None = None
    tenant: str | None = None


AS_IN_CHATS = (
    "model",
    "input_ids",
    "max_tokens",
    "stream",
    "temperature",
    "top_p",
    "top_k",
    *MessagesRequest.__struct_fields__[
        MessagesRequest.__struct_fields__.index("return_token_ids") :
    ],
)
"""Fields that mean the same in a chat."""

UNSUPPORTED_IN_MESSAGES: Mapping[str, Collection[Any]] = {
    "container": NEVER,
    "context_management": NEVER,
    "diagnostics": NEVER,
    "mcp_servers": ([],),
    "speed": ("standard",),
}

IGNORED_IN_MESSAGES = frozenset(
    # Billing, places and callers: they change no output.
    ("inference_geo", "service_tier", "user_profile_id", "workspace_id")
)
