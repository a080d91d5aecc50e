"""Which answers each endpoint has: the one table, for the description of the API.

Owns statuses and types of content. A path that is not in it has no description and fails a test.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from phloem.server.http import answer_shapes as shapes

JSON = "application/json"
EVENTS = "text/event-stream"
TEXT = "text/plain"

ALWAYS = (400, 401, 403, 408, 413, 500)
"""What any request may meet: one that is malformed, without the right key, too slow or too large;
and a failure of the server's, which no input brings about."""
MEANING: Mapping[int, str] = {
    400: "The request is wrong; the message says what and how to mend it.",
    401: "An API key is wanted and was not given, or is not known.",
    403: "The admin key is wanted.",
    404: "There is no such model, response or path.",
    408: "The request's body, or its first token, did not come in time.",
    413: "The body is larger than the server's limit.",
    429: "Too much at once: for the limits of the key, or for the queue.",
    499: "The request was ended by somebody, such as by `/abort_request`.",
    500: "The server failed, or the model did on this request.",
    503: "The server is ending, overloaded, or its scheduler does not answer; try again later.",
}


@dataclass(frozen=True)
class Answers:
    """What one operation may answer."""

    shape: Any = None
    """The type of a success's JSON; None: its content is a text."""
    errors: tuple[int, ...] = ()
    """Beside those of `ALWAYS`."""
    streams: bool = False
    """Whether a success may be a stream of events instead."""
    open: bool = False
    """Whether it wants no key."""


_COUNTS = (404, 429)
"""Of what is no generation, but work that a key's limits count."""
_MAKES = (*_COUNTS, 499, 503)


def _makes(shape: Any, *, streams: bool = False) -> Answers:
    return Answers(shape, _MAKES, streams)


ANSWERS: Mapping[tuple[str, str], Answers] = {
    ("get", "/health"): Answers(shapes.Health, (503,), open=True),
    ("get", "/ready"): Answers(shapes.Health, (503,), open=True),
    ("get", "/startup"): Answers(shapes.Health, open=True),
    ("get", "/health_generate"): Answers(shapes.Health, (503,)),
    ("get", "/v1/models"): Answers(shapes.ModelList),
    ("get", "/v1/models/{id}"): Answers(shapes.ModelCard, (404,)),
    ("get", "/server_info"): Answers(shapes.ServerInfo, (503,)),
    ("get", "/metrics"): Answers(),
    ("post", "/abort_request"): Answers(shapes.Aborted),
    ("post", "/pause_generation"): Answers(shapes.Paused, (503,)),
    ("post", "/continue_generation"): Answers(shapes.Paused, (503,)),
    ("post", "/flush_cache"): Answers(shapes.Flushed, (503,)),
    ("post", "/update_weight_version"): Answers(shapes.WeightVersion, (503,)),
    ("post", "/v1/chat/completions"): _makes(shapes.ChatCompletion, streams=True),
    ("post", "/v1/completions"): _makes(shapes.Completion, streams=True),
    ("post", "/generate"): _makes(shapes.Generated | list[shapes.Generated], streams=True),
    ("post", "/v1/responses"): _makes(shapes.ResponseAnswer, streams=True),
    ("post", "/v1/responses/input_tokens"): Answers(shapes.InputTokens, _COUNTS),
    ("get", "/v1/responses/{id}"): Answers(shapes.ResponseAnswer, (404,)),
    ("delete", "/v1/responses/{id}"): Answers(shapes.DeletedResponse, (404,)),
    ("post", "/v1/responses/{id}/cancel"): Answers(shapes.ResponseAnswer, (404,)),
    ("get", "/v1/responses/{id}/input_items"): Answers(shapes.InputItems, (404,)),
    ("post", "/v1/messages"): _makes(shapes.MessageAnswer, streams=True),
    ("post", "/v1/messages/count_tokens"): Answers(shapes.CountedTokens, _COUNTS),
    ("post", "/v1/embeddings"): _makes(shapes.EmbeddingList),
    ("post", "/encode"): _makes(shapes.Encoded | list[shapes.Encoded]),
    ("post", "/v1/grammar/check"): Answers(shapes.CheckedGrammar, (429, 503)),
    ("post", "/tokenize"): Answers(shapes.Tokenized, _COUNTS),
    ("post", "/v1/tokenize"): Answers(shapes.Tokenized, _COUNTS),
    ("post", "/detokenize"): Answers(shapes.Detokenized, _COUNTS),
    ("post", "/v1/detokenize"): Answers(shapes.Detokenized, _COUNTS),
}
"""By method and path."""
