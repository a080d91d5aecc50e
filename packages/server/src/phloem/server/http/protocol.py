"""What the OpenAI endpoints and the native one take, field by field.

Types are checked against these structs; ranges are the engine's to check, so that one rule holds
for every way in. null means that a field was left out.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import msgspec

DEFAULT_COMPLETION_TOKENS = 16
"""OpenAI's `max_tokens` for completions. A chat's answer may fill the context."""

MAX_SEQUENCES = 4096
"""Prompts times `n` in one request."""
MAX_TENANT_CHARACTERS = 256


class StreamOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Extras of a stream."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None
    """Padding against who watches the sizes of chunks; there is none here, and true is refused."""


class ConstraintFields(msgspec.Struct, kw_only=True):
    """What an output must keep to: one of these. `phloem.server.constraints` has their meaning."""

    response_format: Any = None
    """OpenAI's: an object of type text, json_object, json_schema or structural_tag."""
    json_schema: Any = None
    json_object: Any = None
    regex: Any = None
    ebnf: Any = None
    choices: Any = None
    """Texts, of which the output is one."""
    structural_tag: Any = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
    grammar: Any = None
    structured_outputs: Any = None
    grammar_options: dict[str, Any] | None = None
    """How the constraint is followed; the page on structured output has them."""


class GrammarCheckRequest(ConstraintFields, kw_only=True):
    """The body of `POST /v1/grammar/check`."""

    backend: str | None = None
    """The one to ask; None: the one that the server uses."""


class OpenAIRequest(ConstraintFields, kw_only=True):
    """What chats and completions share: OpenAI's fields, then those of the field's engines."""

    model: str | None = None
    """What is served, by its name; left out: what is served."""
    n: int | None = None
    """Outputs of each prompt, 1 to 128; output i has `seed` + i."""
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    """With `include_usage` a last chunk has the usage."""
    max_tokens: int | None = None
    temperature: float | None = None
    """0 to 2; 0 takes the likeliest token."""
    top_p: float | None = None
    """Above 0, up to 1."""
    frequency_penalty: float | None = None
    """-2 to 2."""
    presence_penalty: float | None = None
    """-2 to 2."""
    logit_bias: dict[str, float] | None = None
    """By token ids, -100 to 100."""
    seed: int | None = None
    """Equal seeds give equal outputs of equal requests."""
    stop: str | list[str] | None = None
    """At most 32 strings."""

    top_k: int | None = None
    """-1: all tokens."""
    min_p: float | None = None
    """0 to 1."""
    repetition_penalty: float | None = None
    """Above 0, up to 2."""
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    stop_token_ids: list[int] | None = None
    skip_special_tokens: bool | None = None
    """Whether special tokens are left out of the text, as they are where this is left out."""
    include_stop_str_in_output: bool | None = None
    """Whether the text keeps the stop string or token that ended it."""
    no_stop_trim: bool | None = None
    """Another name of the same."""
    input_ids: list[Any] | None = None
    """The prompt as token ids, instead of as text."""
    return_token_ids: bool | None = None
    """Whether choices have `token_ids`, and the prompt's as `prompt_token_ids`."""
    return_tokens_as_token_ids: bool | None = None
    """Whether logprobs call tokens `token_id:5` instead of by their text."""
    return_cache_miss_reason: bool | None = None
    """Whether the answer has `cache_miss`: where the cached part of the prompt ends, and why."""
    cache_salt: str | None = None
    """Only requests of an equal salt share cached prefixes."""
    timeout: float | None = None
    """Seconds after which each sequence ends, with 408 if the answer has not begun."""
    queue_timeout: float | None = None
    """Seconds after which one that has not begun ends, with 503."""
    priority: int | None = None
    """How urgent it is, where the server schedules by priority."""
    tenant: str | None = None
    """For whom it is, where tenants are served fairly; only without an API key, which tells itself.
    Without either the salt does."""


class CompletionRequest(OpenAIRequest, kw_only=True):
    """The body of `POST /v1/completions`."""

    prompt: str | list[Any] | None = None
    """A text, texts, token ids, or lists of token ids; or else `input_ids`."""
    logprobs: int | None = None
    """How many of the likeliest tokens are told beside each token, at most 128."""
    echo: bool | None = None
    """Whether the text begins with the prompt, whose logprobs are then told too."""
    best_of: int | None = None
    """Of how many outputs the `n` with the highest mean logprob are returned; all of them count."""


class GenerateRequest(msgspec.Struct, kw_only=True):
    """The body of `POST /generate`."""

    text: str | list[str] | None = None
    input_ids: list[Any] | None = None
    sampling_params: dict[str, Any] | list[dict[str, Any]] | None = None
    """As `Engine.generate` takes them, for all prompts or one for each; SGLang's
    `skip_special_tokens`, `no_stop_trim` and `sampling_seed` may be among them."""
    return_logprob: bool | list[bool] | None = None
    """SGLang's way to ask for logprobs, in whose form they come then; this and the two below for
    all prompts or one for each."""
    top_logprobs_num: int | list[int] | None = None
    logprob_start_len: int | list[int] | None = None
    """First position of the prompt whose logprobs are wanted; -1: none of the prompt's."""
    return_text_in_logprobs: bool | None = None
    stream: bool | None = None
    rid: str | list[str] | None = None
    """Names the sequences, for `/abort_request`."""
    skip_special_tokens: bool | None = None
    no_stop_trim: bool | None = None
    return_token_ids: bool | None = None
    """Whether results have the prompt's ids too; the output's they always have."""
    return_prompt_token_ids: bool | None = None
    """SGLang's name of the same."""
    return_cache_miss_reason: bool | None = None
    cache_salt: str | None = None
    timeout: float | None = None
    queue_timeout: float | None = None
    priority: int | None = None
    tenant: str | None = None


IGNORED = frozenset(
    (
        # Names of users and callers, hints, and billing: they change no output.
        "user",
        "metadata",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "service_tier",
        "prediction",
    )
)

IGNORED_IN_GENERATE = frozenset(
    ("background", "conversation_id", "custom_labels", "log_metrics", "no_logs", "routing_key")
)
"""Hints to SGLang's logs and routers."""

NEVER: tuple[Any, ...] = ()
"""No value asks for nothing."""
OFF = (False,)

UNSUPPORTED: dict[str, Collection[Any]] = {
    "store": OFF,
    # Controls that other engines have.
    "add_special_tokens": OFF,
    "allowed_token_ids": NEVER,
    "bad_words": NEVER,
    "custom_logit_processor": NEVER,
    "custom_params": NEVER,
    "extra_key": NEVER,
    "guided_decoding_backend": NEVER,
    "guided_whitespace_pattern": NEVER,
    "kv_transfer_params": NEVER,
    "length_penalty": (1,),
    "logits_processors": NEVER,
    "lora_path": NEVER,
    "moderation": NEVER,
    "prompt_logprobs": NEVER,
    "return_hidden_states": OFF,
    "rid": NEVER,
    "session_params": NEVER,
    "spaces_between_special_tokens": (True,),
    "stop_regex": NEVER,
    "stream_interval": (1,),
    "structural_tags": NEVER,
    "truncate_prompt_tokens": NEVER,
    "use_beam_search": OFF,
}

UNSUPPORTED_IN_GENERATE: Mapping[str, Collection[Any]] = {
    # SGLang's.
    "audio_data": NEVER,
    "bootstrap_host": NEVER,
    "bootstrap_port": NEVER,
    "bootstrap_room": NEVER,
    "custom_logit_processor": NEVER,
    "extra_key": NEVER,
    "image_data": NEVER,
    "input_embeds": NEVER,
    "lora_id": NEVER,
    "lora_path": NEVER,
    "max_thinking_tokens": NEVER,
    "modalities": NEVER,
    "require_reasoning": OFF,
    "return_entropy": OFF,
    "return_hidden_states": OFF,
    "return_routed_experts": OFF,
    "session_id": NEVER,
    "session_params": NEVER,
    "token_ids_logprob": NEVER,
    "video_data": NEVER,
}

UNSUPPORTED_IN_COMPLETIONS: Mapping[str, Collection[Any]] = {
    **UNSUPPORTED,
    "add_special_tokens": (True,),
    "suffix": ("",),
}
