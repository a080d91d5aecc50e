"""Logprobs as OpenAI's two endpoints write them, each in its own way.

Owns the names of tokens: a token is bytes, and often no whole character.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from phloem.server.messages import Logprobs, TextNews
from phloem.server.tokenizer import Tokenizer

TokenId = int


class TokenNames:
    """What a tokenizer's tokens are called: by their text, or by their ids."""

    def __init__(self, tokenizer: Tokenizer, by_ids: bool = False) -> None:
        self._tokenizer = tokenizer
        self._by_ids = by_ids

    def by_ids(self, wanted: bool | None) -> TokenNames:
        """The names by ids, if they are `wanted`."""
        return TokenNames(self._tokenizer, True) if wanted else self

    @property
    def special_ids(self) -> frozenset[TokenId]:
        """Tokens that are no text."""
        return self._tokenizer.special_ids

    def bytes_of(self, token: TokenId) -> bytes:
        """The bytes that a token adds to a text."""
        table = self._tokenizer.token_bytes
        if table is None:
            return self._tokenizer.decode([token], skip_special_tokens=False).encode()
        return table(token)

    def unique(self, token: TokenId) -> str:
        """A token's text, or `bytes:\\xe2\\x80` where it is none: different ones stay different."""
        if self._by_ids:
            return f"token_id:{token}"
        raw = self.bytes_of(token)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)

    def shown(self, token: TokenId) -> str:
        """A token's text, with U+FFFD where it is none: its bytes are told beside it."""
        if self._by_ids:
            return f"token_id:{token}"
        return self.bytes_of(token).decode(errors="replace")


def chat_logprobs(names: TokenNames, news: TextNews) -> dict[str, Any]:
    """The `logprobs` of a chat's choice: an entry for each token that was generated."""
    given = news.logprobs or Logprobs([], [])
    tops: Sequence[list[tuple[int, float]]] = given.top or [[]] * len(given.chosen)
    return {
        "content": [
            _entry(names, token, value)
            | {"top_logprobs": [_entry(names, *candidate) for candidate in top]}
            for token, value, top in zip(news.token_ids, given.chosen, tops)
        ],
        "refusal": None,
    }


def _entry(names: TokenNames, token: TokenId, logprob: float | None) -> dict[str, Any]:
    raw = names.bytes_of(token)
    return {
        "token": names.shown(token),
        "logprob": logprob,
        "bytes": list(raw),
    }


class CompletionLogprobs:
    """The `logprobs` of a completion's choice, with offsets that go on over a stream's chunks."""

    def __init__(
        self,
        names: TokenNames,
        echoed: Sequence[TokenId],
        skip_special_tokens: bool,
        echo: str = "",
    ) -> None:
        """`echoed` is the prompt where it is repeated before the output, as the text `echo`; else
        both are empty.
        """
        self._names = names
        self._echoed = echoed
        self._echo = echo
        self._unseen = names.special_ids if skip_special_tokens else frozenset()
        self._offset = 0

    def of(self, news: TextNews) -> dict[str, Any]:
        """Of what is new; the first time with the echoed prompt."""
        given = news.logprobs or Logprobs([], [])
        tokens: list[TokenId] = [*self._echoed, *news.token_ids]
        chosen = [*self._echoed_chosen(news), *given.chosen]
        tops = [*self._echoed_top(news), *(given.top or [[]] * len(given.chosen))]
        offsets = [*self._echoed_offsets(), *map(self._advance, news.token_ids)]
        self._echoed = ()
        return {
            "tokens": [self._names.unique(token) for token in tokens],
            "token_logprobs": chosen,
            "top_logprobs": [self._candidates(*item) for item in zip(tokens, chosen, tops)],
            "text_offset": offsets,
        }

    def _echoed_chosen(self, news: TextNews) -> list[float | None]:
        if not self._echoed:
            return []
        # Nothing stands before the first token that could predict it.
        return [None, *(news.prompt_logprobs.chosen if news.prompt_logprobs else ())]

    def _echoed_top(self, news: TextNews) -> list[list[tuple[int, float]]]:
        if not self._echoed:
            return []
        top = news.prompt_logprobs.top if news.prompt_logprobs else []
        return [[], *(top or [[]] * (len(self._echoed) - 1))]

    def _echoed_offsets(self) -> list[int]:
        """Where in the text the prompt's tokens begin; the output begins behind that text, which is
        as the client gave it: without what the tokenizer put in front, with marks that are tokens.
        """
        at, offsets = 0, []
        for token in self._echoed:
            offsets.append(min(at, len(self._echo)))
            at += self._echoed_length(token, at)
        self._offset = max(self._offset, len(self._echo))
        return offsets

    def _echoed_length(self, token: TokenId, at: int) -> int:
        raw = self._names.bytes_of(token)
        spelled = raw.decode(errors="replace")
        if token in self._names.special_ids:
            return len(spelled) if self._echo.startswith(spelled, at) else 0
        # Some tokenizers put a space before a text.
        added = at == 0 and raw[:1] == b" " and not self._echo.startswith(" ")
        return _characters(raw) - added

    def _candidates(
        self, token: TokenId, logprob: float | None, top: list[tuple[int, float]]
    ) -> dict[str, float] | None:
        """The likeliest tokens and the chosen one."""
        if logprob is None:
            return None
        return {self._names.unique(t): p for t, p in [*top, (token, logprob)]}

    def _advance(self, token: TokenId) -> int:
        """Where in the text a token begins; moves on behind it."""
        begin = self._offset
        if token not in self._unseen:
            self._offset += _characters(self._names.bytes_of(token))
        return begin


def _characters(raw: bytes) -> int:
    """How many begin in these bytes."""
    return sum(byte & 0xC0 != 0x80 for byte in raw)
