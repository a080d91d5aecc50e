"""The backends over libraries as their tests make them."""

from __future__ import annotations

import pytest

from phloem.grammar.base import GrammarBackend
from phloem.grammar.llguidance_backend import LLGuidanceBackend
from phloem.grammar.vocabulary import Vocabulary
from phloem.grammar.xgrammar_backend import XGrammarBackend

STOP, SECOND_STOP, SPECIAL, TWIN = 256, 257, 258, 259
_TEXTS = (b"abc", b"abc", b'"]}', b'":', b'{"', b'","', b"\xc3", b"]}", b"ab")
VOCABULARY = Vocabulary(
    [*(bytes([byte]) for byte in range(256)), None, None, b'"]}', *_TEXTS, None],
    stop_ids=[STOP, SECOND_STOP],
    special_ids=[SPECIAL],
)
"""Token n is byte n; two stop tokens, a special token named like the end of JSON, and twins."""

BACKENDS = {"xgrammar": XGrammarBackend, "llguidance": LLGuidanceBackend}


def made(name: str) -> GrammarBackend:
    """A backend, or a skipped test where its library is not installed."""
    pytest.importorskip(name)
    return BACKENDS[name](VOCABULARY)
