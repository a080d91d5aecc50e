"""Texts are UTF-8: what libraries would take beside it is kept from them.

xgrammar reads ED and A0 to BF as the beginning of a character, which is that of half a surrogate
pair and so of none; everything else that is no UTF-8 it refuses.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from phloem.grammar.mask_rows import row_of
from phloem.grammar.vocabulary import Vocabulary

_SURROGATE = re.compile(rb"\xed[\xa0-\xbf]")


def utf8(text: str | bytes) -> bytes | None:
    """The bytes of a text; None where they are no UTF-8, as of a str with a lone surrogate."""
    try:
        if isinstance(text, str):
            return text.encode()
        text.decode()
    except UnicodeError:
        return None
    return text


@dataclass(frozen=True)
class SurrogateTokens:
    """The tokens of a vocabulary in which half a surrogate pair is, or may begin or go on."""

    whole: frozenset[int]
    """Those that hold its two first bytes: never legal."""
    first: frozenset[int]
    """Those that end with its first byte, which is also that of many a character."""
    second: frozenset[int]
    """Those that begin with its second byte: not legal after one of `first`."""
    not_second: npt.NDArray[np.int32]
    """All others, as a mask: int32 [ceil(size / 32)]."""


def surrogate_tokens(vocabulary: Vocabulary) -> SurrogateTokens:
    """The sets of a vocabulary."""
    tokens = [(id_, token) for id_, token in enumerate(vocabulary.tokens) if token]
    second = frozenset(id_ for id_, token in tokens if 0xA0 <= token[0] <= 0xBF)
    return SurrogateTokens(
        whole=frozenset(id_ for id_, token in tokens if _SURROGATE.search(token)),
        first=frozenset(id_ for id_, token in tokens if token[-1] == 0xED),
        second=second,
        not_second=~row_of(sorted(second), vocabulary.words),
    )
