"""Logprobs put to the texts of an answer's blocks, token by token.

Owns which token's logprob goes with which text, by bytes. A token's text may come later than the
token, in part, or not at all; parts of the text are marks, which no block has.
"""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from phloem.server.http.logprobs import TokenId, TokenNames, chat_logprobs
from phloem.server.messages import Finish, TextNews

Entry = dict[str, Any]
"""What is told of a token."""


@dataclass(frozen=True, slots=True)
class Piece:
    """The text of one token, the same however the news came; has what a parser reads of news."""

    text: str
    token_ids: list[TokenId]
    finish: Finish | None = None


_BROKEN = "\ufffd".encode()
"""What a text has for bytes that are no character."""


class AlignedEntries:
    """The tokens of one sequence whose text no block has yet."""

    def __init__(self, names: TokenNames) -> None:
        self._names = names
        self._coming: deque[tuple[TokenId, bytes, Entry | None]] = deque()
        """Tokens whose text has not come."""
        self._text = b""
        """Text that is not yet known to be all of a token's."""
        self._decode = codecs.getincrementaldecoder("utf-8")().decode
        self._read: deque[tuple[bytes, Entry | None]] = deque()
        """Bytes that a parser has, with the tokens that they begin."""

    def pieces(self, news: TextNews) -> Iterator[Piece]:
        """News token by token; read each before the next."""
        entries: list[Entry] = chat_logprobs(self._names, news)["content"]
        for token, entry in zip_longest(news.token_ids, entries):
            self._coming.append((token, self._names.bytes_of(token), entry))
        self._text += news.text.encode()
        while self._coming and self._text:
            token, raw, entry = self._coming[0]
            size = self._size(token, raw)
            if size is None:
                break
            self._coming.popleft()
            yield self._piece([token], size, entry)
        if news.finish is not None:
            rest = [token for token, _, _ in self._coming]
            entry = self._coming[0][2] if self._coming and self._text else None
            yield self._piece(rest, len(self._text), entry, news.finish)

    def taken(self, text: str, goes_on: bool) -> list[Entry]:
        """The entries of tokens that `text` has something of, each the first time that one has.

        Those of what is before it are left out: marks, and what else no block has.

        Args:
            text: of a block, as it grew.
            goes_on: whether it follows on a text of the same block.
        """
        data = text.encode()
        read = b"".join(raw for raw, _ in self._read)
        begin = 0 if goes_on and read.startswith(data) else read.rfind(data)
        if begin < 0:
            # White space before it was another's, or is not there.
            data = data.lstrip()
            begin = read.rfind(data)
        if begin < 0:
            begin, data = 0, read
        self._drop(begin, begun=False)
        return self._drop(len(data), begun=True)

    def pass_over(self) -> None:
        """What was read is of a block that has no entries."""
        self._read.clear()

    def _size(self, token: TokenId, raw: bytes) -> int | None:
        """How many bytes of the text are a token's; None: that is not known yet."""
        text = self._text
        if text.startswith(raw):
            return len(raw)
        if raw.startswith(text):
            return None
        if token in self._names.special_ids:
            return 0
        bare = raw.lstrip()
        if bare and text.startswith(bare):
            return len(bare)
        if bare.startswith(text):
            return None
        broken = 0
        while text.startswith(_BROKEN, broken):
            broken += len(_BROKEN)
        return broken + len(raw) if broken and text.startswith(raw, broken) else 0

    def _piece(
        self, ids: list[TokenId], size: int, entry: Entry | None, finish: Finish | None = None
    ) -> Piece:
        raw, self._text = self._text[:size], self._text[size:]
        self._read.append((raw, entry))
        return Piece(self._decode(raw, finish is not None), ids, finish)

    def _drop(self, size: int, begun: bool) -> list[Entry]:
        """Take off bytes; of a token that is not wholly taken off, its entry if it is `begun`."""
        found = []
        while size and self._read and size >= len(self._read[0][0]):
            raw, entry = self._read.popleft()
            size -= len(raw)
            if begun and entry is not None:
                found.append(entry)
        if size and self._read:
            raw, entry = self._read[0]
            if begun and entry is not None:
                found.append(entry)
            self._read[0] = raw[size:], None if begun else entry
        return found
