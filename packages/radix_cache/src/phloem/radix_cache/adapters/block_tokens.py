"""The tokens of requests as the tree knows them, for `block_manager`.

Owns how contents become token ids, and which ids a request may have of its own.
"""

from __future__ import annotations

from array import array
from itertools import count

from ..key import Key, Namespace, TokenId
from .blocks import BlockRequest


class RequestTokens:
    """Packs tokens of requests, with one negative id for each identity of a content."""

    def __init__(self) -> None:
        # An entry for each identity seen since the last reset; ids are never used again.
        self._content_ids: dict[str, TokenId] = {}
        self._fresh_ids = count(-1, -1)

    def extend(self, packed: array[int], request: BlockRequest, n: int) -> None:
        """Extend `packed` to `n` tokens, if it has fewer, with contents for their placeholders.

        Raises `ValueError`, changing nothing, for a negative id that is no placeholder.
        """
        start = len(packed)
        if start >= n:
            return
        ids = list(request.all_token_ids[start:n])
        spans = [
            (slice(first - start, last - start), last - first, content.identity)
            for content in request.contents
            if (first := max(content.start, start))
            < (last := min(content.start + content.length, n))
        ]
        for span, length, _ in spans:
            ids[span] = [0] * length
        if min(ids, default=0) < 0:
            at, token = next((at, token) for at, token in enumerate(ids, start) if token < 0)
            raise ValueError(
                f"token {token} at position {at} of request {request.request_id!r} is negative, as "
                "only the ids are that stand for contents: give ids from 0 up, or free the request "
                "with cache_computed=False"
            )
        for span, length, identity in spans:
            ids[span] = [self._content_id(identity)] * length
        packed.frombytes(Key(ids).data)

    def forget(self) -> None:
        """Nothing that was packed before is known to anybody any more."""
        self._content_ids.clear()

    def _content_id(self, identity: str) -> TokenId:
        known = self._content_ids.get(identity)
        if known is None:
            known = self._content_ids[identity] = next(self._fresh_ids)
        return known


def namespace_of(request: BlockRequest) -> Namespace:
    """Requests share only within one adapter and one salt."""
    return (request.lora_name, request.cache_salt)
