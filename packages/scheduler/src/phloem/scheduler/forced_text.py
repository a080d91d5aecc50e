"""Tokens of text that a constraint leaves no choice about.

Owns which tokens such text is written with: those that the tokenizer makes of it together with the
token before it, and not whatever the model happens to choose. So a jump over forced text gives the
same tokens as going there step by step. Whether anybody jumps is not decided here.

::

    sampled    forced by the constraint
    [ na ]     m e " : _ "
    [ name ]  [ ": ]  [ _" ]        the tokenizer's own cut
      fixed     fixed   left to the model: text that follows may still become part of it
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from phloem.scheduler.ports import TextTokenizer, TokenMatcher

_KNOWN_TEXTS = 4096
"""Texts whose tokens are remembered: the keys of a schema come again and again."""


class ForcedText:
    """Fixes the tokens of forced text, of any request."""

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer
        self._cut = lru_cache(_KNOWN_TEXTS)(self._cut_anew)

    def begin(self, matcher: TokenMatcher, tokens_left: int | None = None) -> list[int]:
        """The tokens that an output surely begins with, maybe none; the matcher has accepted them
        then.

        Args:
            matcher: at the beginning.
            tokens_left: if given, nothing is fixed that would keep the text from being completed
                within as many tokens, where the matcher can tell.
        """
        ids = self._cut(matcher.forced())
        if ids is None:
            return []
        accepted = _accept(matcher, ids, least=0)
        if _reaches_the_end(matcher, len(accepted), tokens_left):
            return accepted
        matcher.rollback(len(accepted))
        return []

    def settle(
        self,
        matcher: TokenMatcher,
        token: int,
        *,
        may_replace: bool = True,
        tokens_left: int | None = None,
    ) -> list[int]:
        """The token just accepted and those that are fixed after it; the matcher has accepted all
        of them then, at least one.

        Args:
            matcher: has accepted `token` last.
            token: the sampled one.
            may_replace: whether the first may be another one, if the tokenizer cuts its text and
                the forced text after it in another way.
            tokens_left: as for `begin`, with the sampled one.
        """
        if matcher.is_terminated:
            return [token]
        forced = matcher.forced()
        own = self._tokenizer.token_bytes(token) if forced else b""
        ids = self._cut(own + forced) if own else None
        if ids is None or (ids[0] != token and not may_replace):
            return [token]
        matcher.rollback(1)
        accepted = _accept(matcher, ids, least=1)
        if accepted and _reaches_the_end(matcher, len(accepted), tokens_left):
            return accepted
        if accepted:
            matcher.rollback(len(accepted))
        matcher.accept(token)
        return [token]

    def _cut_anew(self, text: bytes) -> Sequence[int] | None:
        """The tokenizer's tokens of a text; None if they do not spell it, byte for byte."""
        ids = self._tokenizer.encode(text) if text else None
        if not ids or b"".join(map(self._tokenizer.token_bytes, ids)) != text:
            return None
        return ids


def _accept(matcher: TokenMatcher, ids: Sequence[int], least: int) -> list[int]:
    """Accept tokens as far as they are allowed, without the last one: text that follows may merge
    with it. It is taken where nothing may follow, and where there are no more than `least`.
    """
    accepted: list[int] = []
    for token in ids:
        if not matcher.accept(token):
            return accepted
        accepted.append(token)
    if len(accepted) > least and not matcher.is_terminated:
        matcher.rollback(1)
        accepted.pop()
    return accepted


def _reaches_the_end(matcher: TokenMatcher, taken: int, tokens_left: int | None) -> bool:
    """Whether the text can still be completed, as far as can be told."""
    if tokens_left is None:
        return True
    distance = matcher.distance_to_end()
    return distance is None or taken + distance <= tokens_left
