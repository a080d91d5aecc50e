"""The vocabulary that constraints are compiled for, made alike in every process that needs it."""

from __future__ import annotations

from collections.abc import Sequence

from phloem.grammar.vocabulary import Vocabulary
from phloem.server.token_bytes import TokenId
from phloem.server.tokenizer import Tokenizer


def grammar_vocabulary(tokenizer: Tokenizer, size: int, stop_ids: Sequence[TokenId]) -> Vocabulary:
    """What the tokens of a model spell.

    Args:
        tokenizer: the model's.
        size: rows of the model's logits, which may be more or fewer than the tokenizer has tokens.
        stop_ids: the tokens that end a text.

    Raises:
        GrammarError: the tokenizer does not spell texts in bytes.
    """
    made = Vocabulary.from_tokenizers(tokenizer.backend, stop_ids=stop_ids, size=size)
    if made.size == size:
        return made
    special = [token for token in made.special_ids if token < size]
    return Vocabulary(made.tokens[:size], stop_ids, special)
