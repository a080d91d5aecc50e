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

_LOOKED_AT = 1 << 20
"""Characters whose bytes are counted without a break for other threads."""
_TOKENIZED = 1 << 15
"""Characters that are tokenized before it is asked whether there are too many already."""


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
        least = 0
        for begin in range(0, len(text), _LOOKED_AT):
            # Each part's count is rounded up, and so is the whole's.
            least += tokenizer.least_tokens(text[begin : begin + _LOOKED_AT]) - (begin > 0)
        if least > fitting:
            return least
    looked_at = _CHARACTERS_PER_TOKEN * fitting
    if len(text) <= looked_at:
        return 0
    # A cut may split words, and so make more tokens of a part than it has in the whole: half of
    # them is a count that stands.
    counted = 0
    for begin in range(0, looked_at, _TOKENIZED):
        part = text[begin : min(begin + _TOKENIZED, looked_at)]
        counted += len(tokenizer.encode(part, special and not begin))
        if counted // 2 > fitting:
            break
    return counted // 2
