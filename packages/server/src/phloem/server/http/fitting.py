"""Texts that are too long for the engine by far, refused before the work of tokenizing them.

Owns the bounds that make this certain. What is near the limit is tokenized and then refused, or
not, by the engine's own check.
"""

from __future__ import annotations

from phloem.server.http.errors import ApiError
from phloem.server.messages import Limits
from phloem.server.tokenizer import Tokenizer

_CHARACTERS_PER_TOKEN = 64
"""Text beyond this much for each token that fits is first looked at in part: prose has about 4."""


def check_fits(
    tokenizer: Tokenizer, limits: Limits, text: str, param: str, add_special_tokens: bool = True
) -> None:
    """Refuse a text that has more tokens than can be served, at a cost that the limits bound.

    Raises:
        ApiError: it has.
    """
    least = _least_tokens(tokenizer, limits.max_total_tokens, text, add_special_tokens)
    if least > limits.max_total_tokens:
        raise ApiError(
            f"the prompt has at least {least} tokens: the context is {limits.context_len} tokens, "
            f"of which a prompt and its output may use {limits.max_total_tokens}; shorten the "
            "prompt",
            param=param,
            code="context_length_exceeded",
        )


def _least_tokens(tokenizer: Tokenizer, fitting: int, text: str, special: bool) -> int:
    """How many tokens `text` has at least; 0 where it is short enough to count them all."""
    # A character is at most four bytes, and so about as many tokens.
    if 4 * len(text) <= fitting:
        return 0
    if tokenizer.least_tokens is not None:
        least = tokenizer.least_tokens(text)
        if least > fitting:
            return least
    if len(text) <= _CHARACTERS_PER_TOKEN * fitting:
        return 0
    # The cut may split words, and so make more tokens of a part than it has in the whole: half of
    # them is a count that stands.
    return len(tokenizer.encode(text[: _CHARACTERS_PER_TOKEN * fitting], special)) // 2
