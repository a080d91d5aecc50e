"""`Vocabulary`: what each token id spells, as bytes. How tokenizer files tell it is
`tokenizer_json.py`'s business."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from phloem.grammar.errors import GrammarError
from phloem.grammar.token_costs import TokenCosts
from phloem.grammar.token_trie import TokenTrie
from phloem.grammar.tokenizer_json import read_tokenizer


class Vocabulary:
    """The bytes of every token of a model, and which tokens end a text.

    Args:
        tokens: by id; None for ids that no bytes match: special tokens, and holes. More ids than
            the tokenizer has (logits are often padded) are holes at the end.
        stop_ids: the tokens that end a text. They are never matched by their bytes.
        special_ids: tokens such as `<|im_start|>`. They are never matched by their bytes either.

    Raises:
        GrammarError: if an id is outside of the vocabulary.
    """

    def __init__(
        self,
        tokens: Sequence[bytes | None],
        stop_ids: Iterable[int],
        special_ids: Iterable[int] = (),
    ) -> None:
        self.stop_ids = tuple(sorted(set(stop_ids)))
        self.special_ids = frozenset(special_ids)
        self.size = len(tokens)
        for id in (*self.stop_ids, *self.special_ids):
            if not 0 <= id < self.size:
                raise GrammarError(
                    f"token {id} is outside of a vocabulary of {self.size}: give `size`, or "
                    "tokens up to the largest id"
                )
        atomic = self.special_ids.union(self.stop_ids)
        self.tokens: tuple[bytes | None, ...] = tuple(
            None if id in atomic else token or None for id, token in enumerate(tokens)
        )

    @classmethod
    def from_transformers(
        cls, tokenizer: Any, *, stop_ids: Iterable[int] | None = None, size: int | None = None
    ) -> Vocabulary:
        """Of a fast tokenizer of the transformers library.

        Args:
            stop_ids: default: the tokenizer's end of sequence.
            size: of the logits, where that is more than the tokenizer knows.

        Raises:
            GrammarError: if the tokenizer is not a fast one, or does not spell texts in bytes.
        """
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise GrammarError(
                f"{type(tokenizer).__name__} is not a fast tokenizer: load it with use_fast=True, "
                "or give Vocabulary(tokens, stop_ids) the bytes of its tokens"
            )
        if stop_ids is None:
            end = tokenizer.eos_token_id
            stop_ids = [] if end is None else [end]
        return cls._from_text(backend.to_str(), stop_ids, size, tokenizer.all_special_ids)

    @classmethod
    def from_tokenizers(
        cls, tokenizer: Any, *, stop_ids: Iterable[int] = (), size: int | None = None
    ) -> Vocabulary:
        """Of a `tokenizers.Tokenizer`, or the path of a `tokenizer.json`.

        Args:
            stop_ids: the tokens that end a text; the file does not tell them.
            size: of the logits, where that is more than the tokenizer knows.

        Raises:
            GrammarError: if the tokenizer does not spell texts in bytes.
        """
        if isinstance(tokenizer, (str, Path)):
            text = Path(tokenizer).read_text(encoding="utf-8")
        else:
            text = tokenizer.to_str()
        return cls._from_text(text, stop_ids, size, ())

    @classmethod
    def _from_text(
        cls, text: str, stop_ids: Iterable[int], size: int | None, special_ids: Iterable[int]
    ) -> Vocabulary:
        tokens, special = read_tokenizer(text)
        missing = (size or 0) - len(tokens)
        return cls([*tokens, *[None] * missing], stop_ids, special.union(special_ids))

    @property
    def words(self) -> int:
        """The 32-bit words of one row of a mask."""
        return (self.size + 31) // 32

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the content: equal vocabularies have equal ones, in any process."""
        digest = hashlib.sha256(repr((self.stop_ids, sorted(self.special_ids))).encode())
        for token in self.tokens:
            spelled = token or b""
            digest.update(len(spelled).to_bytes(4, "little"))
            digest.update(spelled)
        return digest.hexdigest()

    @cached_property
    def missing_bytes(self) -> bytes:
        """Bytes of UTF-8 texts that no token is by itself; a text with them may have no spelling.

        Vocabularies with all 256 bytes, or byte fallback, have none.
        """
        single = {token[0] for token in self.tokens if token is not None and len(token) == 1}
        legal = (*range(0xC0), *range(0xC2, 0xF5))
        return bytes(byte for byte in legal if byte not in single)

    @cached_property
    def trie(self) -> TokenTrie:
        """The tokens by their prefixes."""
        return TokenTrie(self.tokens)

    @cached_property
    def cost(self) -> TokenCosts:
        """The fewest tokens that spell a literal."""
        return TokenCosts(self.trie)

    def __getstate__(self) -> dict[str, Any]:
        # What is derived is large, and quickly made again.
        own = ("stop_ids", "special_ids", "size", "tokens")
        return {name: getattr(self, name) for name in own}
