"""What the endpoints answer, as structs: for the description of the API only.

The answers themselves are written by hand, since each token counts there; tests hold them against
these shapes. A field without a default is always there. What an answer has beyond these fields is
an extension or an echo of the request.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec


class OpenAIErrorDetail(msgspec.Struct):
    """What was wrong."""

    message: str
    """A sentence."""
    type: str
    param: str | None
    """The field of the request that it is about."""
    code: str | None


class OpenAIError(msgspec.Struct):
    """An error as OpenAI has it; on all paths but Anthropic's."""

    error: OpenAIErrorDetail


class AnthropicErrorDetail(msgspec.Struct):
    """What was wrong."""

    type: str
    message: str


class AnthropicError(msgspec.Struct):
    """An error as Anthropic has it."""

    type: Literal["error"]
    error: AnthropicErrorDetail


class AnswerTimings(msgspec.Struct):
    """Milliseconds; null: it did not come to that."""

    queue_ms: float | None
    prefill_ms: float | None
    decode_ms: float | None
    per_token_ms: float | None


class AnswerUsage(msgspec.Struct):
    """Tokens of all choices."""

    prompt_tokens: int
    total_tokens: int
    prompt_tokens_details: dict[str, int]
    completion_tokens: int | None = None
    completion_tokens_details: dict[str, int] | None = None


class ChatMessageAnswer(msgspec.Struct):
    """The message of one choice."""

    role: Literal["assistant"]
    content: str | None
    reasoning_content: str | None = None
    tool_calls: list[dict[str, Any]] | None = None


class ChatChoice(msgspec.Struct):
    """One output of a chat."""

    index: int
    message: ChatMessageAnswer
    logprobs: dict[str, Any] | None
    finish_reason: str
    retractions: int | None = None
    """Of several choices each has its own; of one the whole answer has them."""
    timings: AnswerTimings | None = None


class ChatCompletion(msgspec.Struct):
    """A whole answer of `/v1/chat/completions`."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: AnswerUsage
    retractions: int | None = None
    timings: AnswerTimings | None = None


class CompletionChoice(msgspec.Struct):
    """One output of a completion."""

    index: int
    text: str
    logprobs: dict[str, Any] | None
    finish_reason: str
    retractions: int | None = None
    """Of several choices each has its own; of one the whole answer has them."""
    timings: AnswerTimings | None = None


class Completion(msgspec.Struct):
    """A whole answer of `/v1/completions`."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: AnswerUsage
    retractions: int | None = None
    timings: AnswerTimings | None = None


class GenerateMeta(msgspec.Struct):
    """What `/generate` and `/encode` tell of a sequence, beside logprobs."""

    id: str
    finish_reason: dict[str, Any] | None
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


class Generated(msgspec.Struct):
    """One sequence of `/generate`."""

    text: str
    output_ids: list[int]
    meta_info: GenerateMeta


class Encoded(msgspec.Struct):
    """One text of `/encode`."""

    embedding: list[float] | str
    meta_info: GenerateMeta


class EmbeddingItem(msgspec.Struct):
    """One text's vector."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingList(msgspec.Struct):
    """The answer of `/v1/embeddings`."""

    object: Literal["list"]
    data: list[EmbeddingItem]
    model: str
    usage: AnswerUsage


class ResponseAnswer(msgspec.Struct):
    """A response of `/v1/responses`."""

    id: str
    object: Literal["response"]
    created_at: int
    status: str
    model: str
    output: list[dict[str, Any]]
    usage: dict[str, Any] | None


class InputTokens(msgspec.Struct):
    """The length of a response's prompt."""

    object: Literal["response.input_tokens"]
    input_tokens: int


class DeletedResponse(msgspec.Struct):
    """That a response is kept no longer."""

    id: str
    object: Literal["response"]
    deleted: bool


class InputItems(msgspec.Struct):
    """A page of the items that a response was asked with."""

    object: Literal["list"]
    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool


class MessageAnswer(msgspec.Struct):
    """An answer of `/v1/messages`."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[dict[str, Any]]
    stop_reason: str | None
    stop_sequence: str | None
    usage: dict[str, Any]


class CountedTokens(msgspec.Struct):
    """The length of a message's prompt."""

    input_tokens: int


class CheckedGrammar(msgspec.Struct):
    """Whether a constraint can be enforced, and what each backend says of it."""

    supported: bool
    backends: list[dict[str, Any]]


class Tokenized(msgspec.Struct):
    """The tokens of a prompt, or of each of several."""

    tokens: list[Any]
    count: int | list[int]
    max_model_len: int
    token_strs: list[Any] | None = None


class Detokenized(msgspec.Struct):
    """The text of tokens, or of each of several lists."""

    text: str | list[str]


class ModelCard(msgspec.Struct):
    """The model that is served."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int


class ModelList(msgspec.Struct):
    """All models that are served, which is one."""

    object: Literal["list"]
    data: list[ModelCard]


class ServerInfo(msgspec.Struct):
    """What the server is and does."""

    model: str
    version: str
    limits: dict[str, Any]
    state: dict[str, Any] | None = None
    """This and the next ones are for the admin key only, where there are keys."""
    grammar: dict[str, Any] | None = None
    options: dict[str, Any] | None = None


class Health(msgspec.Struct):
    """That the server is well."""

    status: str


class Aborted(msgspec.Struct):
    """How many sequences were ended."""

    aborted: int


class Paused(msgspec.Struct):
    """How the server is paused; null: it is not."""

    paused: str | None


class Flushed(msgspec.Struct):
    """What was forgotten."""

    freed_tokens: int


class WeightVersion(msgspec.Struct):
    """What the weights are called now."""

    weight_version: str
