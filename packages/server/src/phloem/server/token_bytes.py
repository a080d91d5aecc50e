"""What each token of a vocabulary stands for, as bytes of UTF-8.

Owns the reading of a `tokenizers` decoder: byte-level BPE (GPT-2's byte alphabet) and the
SentencePiece family (a mark for the space, `<0xHH>` for bytes). Decoders whose text is more than
the tokens' bytes in a row have no such table; the detokenizer then decodes windows of tokens.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any

import tokenizers

TokenId = int

TokenBytes = Callable[[TokenId], bytes]
"""The bytes of a token; none for an id that the vocabulary does not have."""

TokenBound = Callable[[str], int]
"""The least number of tokens that a text can have."""

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def token_bytes_of(backend: tokenizers.Tokenizer) -> TokenBytes | None:
    """The table of `backend`, filled as it is asked; None where its decoder allows none."""
    steps = _steps(backend.decoder, "decoders")
    if [step["type"] for step in steps] == ["ByteLevel"]:
        literal = frozenset(backend.get_added_tokens_decoder())
        return _cached(backend, lambda i, text: _from_byte_level(text, literal=i in literal))
    rule = _piece_rule(steps)
    return None if rule is None else _cached(backend, lambda _, text: rule(text))


def token_bound_of(backend: tokenizers.Tokenizer) -> TokenBound | None:
    """How many tokens a text has at least; None where its length says nothing about it.

    It does in byte-level BPE without anything that rewrites or drops text on the way, where each
    byte is in a token, but for those that the vocabulary lacks.
    """
    added = backend.get_added_tokens_decoder().values()
    if backend.normalizer is not None or any(token.lstrip or token.rstrip for token in added):
        return None
    steps = _steps(backend.pre_tokenizer, "pretokenizers")
    if not steps or steps[-1]["type"] != "ByteLevel" or not all(map(_keeps_text, steps)):
        return None
    if not isinstance(backend.model, tokenizers.models.BPE):
        return None
    vocabulary = backend.get_vocab(with_added_tokens=False)
    # One character of the byte alphabet is one byte.
    longest = max(*map(len, vocabulary), *(len(token.content.encode()) for token in added), 1)
    dropped = bytes(byte for text, byte in _BYTE_OF.items() if text not in vocabulary)
    # Half of a surrogate pair counts as one byte.
    return lambda text: -(-len(text.encode(errors="replace").translate(None, dropped)) // longest)


def _keeps_text(step: Mapping[str, Any]) -> bool:
    kind = step["type"]
    return kind in ("ByteLevel", "Digits") or (kind == "Split" and step["behavior"] != "Removed")


def _cached(backend: tokenizers.Tokenizer, to_bytes: Callable[[TokenId, str], bytes]) -> TokenBytes:
    known: dict[TokenId, bytes] = {}

    def token_bytes(token_id: TokenId) -> bytes:
        found = known.get(token_id)
        if found is None:
            text = backend.id_to_token(token_id) if token_id >= 0 else None
            found = known[token_id] = b"" if text is None else to_bytes(token_id, text)
        return found

    return token_bytes


def _steps(part: Any, name: str) -> Sequence[Mapping[str, Any]]:
    """The settings of a decoder or pre-tokenizer, step by step; `name` is what a sequence has."""
    if part is None:
        return ()
    state = json.loads(part.__getstate__())
    steps: Sequence[Mapping[str, Any]] = state[name] if state["type"] == "Sequence" else (state,)
    return steps


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's characters for bytes: printable Latin-1 for itself, the rest from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = (byte for byte in range(0x100) if byte not in printable)
    return {chr(byte): byte for byte in printable} | dict(zip(map(chr, count(0x100)), others))


_BYTE_OF = _byte_alphabet()


def _from_byte_level(text: str, *, literal: bool) -> bytes:
    """A token of the byte alphabet; added tokens are written as plain text."""
    if literal or not all(character in _BYTE_OF for character in text):
        return text.encode()
    return bytes(_BYTE_OF[character] for character in text)


def _piece_rule(steps: Sequence[Mapping[str, Any]]) -> Callable[[str], bytes] | None:
    """How a SentencePiece-style decoder reads one token; None for steps that look across tokens.

    A strip of spaces at the start of the whole text is left out: it concerns the start of a
    document, and what a model generates continues one.
    """
    replaced: list[tuple[str, str]] = []
    byte_tokens = fused = False
    for step in steps:
        kind = step["type"]
        if kind == "Replace" and "String" in step["pattern"] and not fused:
            replaced.append((step["pattern"]["String"], step["content"]))
        elif kind == "Metaspace":
            replaced.append((step["replacement"], " "))
        elif kind == "ByteFallback":
            byte_tokens = True
        elif kind == "Fuse":
            fused = True
        elif not (kind == "Strip" and fused and step["stop"] == 0):
            return None
    if not replaced:
        return None

    def to_bytes(text: str) -> bytes:
        byte = _BYTE_TOKEN.fullmatch(text) if byte_tokens else None
        if byte:
            return bytes([int(byte[1], 16)])
        for old, new in replaced:
            text = text.replace(old, new)
        return text.encode()

    return to_bytes
