"""Token ids to text, as they come, without ever showing half of a character.

Owns incremental decoding: what is certain is given out at once, bytes that may still become a
character wait. It knows nothing of stop strings or of requests.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from typing import Protocol

from phloem.server.token_bytes import TokenBytes, TokenId

REPLACEMENT = "\ufffd"


class TokenText(Protocol):
    """What a detokenizer needs of a tokenizer."""

    @property
    def special_ids(self) -> frozenset[TokenId]:
        """Tokens that control the model and are not text."""
        ...

    @property
    def token_bytes(self) -> TokenBytes | None:
        """The bytes of each token; None where text cannot be made token by token."""
        ...

    def id_to_token(self, token_id: TokenId) -> str | None:
        """A token as the vocabulary writes it; None: no such id."""
        ...

    def decode(self, ids: Sequence[TokenId], skip_special_tokens: bool = True) -> str:
        """The text of a whole sequence."""
        ...


class IncrementalDetokenizer:
    """Turns one request's output tokens into text.

    The text of an output is, by definition, what the pushes and the flush return, joined: it does
    not depend on how the ids are split over the pushes. Invalid bytes become U+FFFD, one for each
    maximal invalid part (Unicode, section 3.9); ids that the vocabulary lacks have no text. The
    output continues a prompt, so the leading space of its first word stays. Nothing raises.
    """

    def __init__(self, tokenizer: TokenText, skip_special_tokens: bool = True) -> None:
        self._skipped = tokenizer.special_ids if skip_special_tokens else frozenset()
        table = tokenizer.token_bytes
        self._text = _Windows(tokenizer) if table is None else _Bytes(table)

    def push(self, ids: Iterable[TokenId]) -> str:
        """Take the next tokens; return the text that is now certain, possibly none."""
        return self._text.push([i for i in ids if i not in self._skipped])

    def flush(self) -> str:
        """End the output; return what was waiting, an unfinished character as U+FFFD."""
        return self._text.flush()


def decode_all(
    tokenizer: TokenText, ids: Iterable[TokenId], skip_special_tokens: bool = True
) -> str:
    """The text of a whole output."""
    detokenizer = IncrementalDetokenizer(tokenizer, skip_special_tokens)
    return detokenizer.push(ids) + detokenizer.flush()


class MarkedText:
    """The text of one output with each special token's own text where the token came.

    Without the special tokens it is the text that skips them: bytes of a character that wait while
    a special token passes stay waiting.
    """

    def __init__(self, tokenizer: TokenText) -> None:
        self._tokenizer = tokenizer
        self._ordinary = IncrementalDetokenizer(tokenizer)

    def push(self, token_id: TokenId) -> str:
        """Take the next token; return the text that is now certain."""
        if token_id in self._tokenizer.special_ids:
            return self._tokenizer.id_to_token(token_id) or ""
        return self._ordinary.push((token_id,))

    def flush(self) -> str:
        """End the output; return what was waiting."""
        return self._ordinary.flush()


class _Bytes:
    """For tokens that are bytes: a UTF-8 decoder that waits for the rest of a character."""

    def __init__(self, token_bytes: TokenBytes) -> None:
        self._token_bytes = token_bytes
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, ids: Sequence[TokenId]) -> str:
        return self._utf8.decode(b"".join(map(self._token_bytes, ids)))

    def flush(self) -> str:
        return self._utf8.decode(b"", final=True)


class _Windows:
    """For any other decoder: the text of a token is what it adds to the text of those before it.

    ```
    ids:  [ ... given out | context        | waiting ]
                            0          _read          len(_ids)
    ```
    """

    _LONGEST_WAIT = 16
    """Tokens after which a trailing U+FFFD is taken as final: no character has that many bytes."""

    def __init__(self, tokenizer: TokenText) -> None:
        self._tokenizer = tokenizer
        self._ids: list[TokenId] = []
        self._read = 0
        self._context = ""

    def push(self, ids: Sequence[TokenId]) -> str:
        return "".join(map(self._push_one, ids))

    def _push_one(self, token_id: TokenId) -> str:
        self._ids.append(token_id)
        waiting = len(self._ids) - self._read
        text = self._decode(self._ids)
        if text.endswith(REPLACEMENT) and waiting < self._LONGEST_WAIT:
            return ""
        return self._advance(text)

    def flush(self) -> str:
        return self._advance(self._decode(self._ids))

    def _advance(self, text: str) -> str:
        added = text[len(self._context) :]
        self._ids = self._ids[self._read :]
        self._read = len(self._ids)
        self._context = self._decode(self._ids)
        return added

    def _decode(self, ids: Sequence[TokenId]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=False)
