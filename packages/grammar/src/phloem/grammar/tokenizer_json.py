"""What the tokens of a `tokenizer.json` (of the tokenizers library) spell.

Three ways of writing bytes are known: the byte-level alphabet of GPT-2, `▁` for a space
(sentencepiece, metaspace), and `<0x0A>` for a byte (byte fallback).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from phloem.grammar.errors import GrammarError

_FALLBACK = re.compile(r"<0x([0-9A-Fa-f]{2})>\Z")


def read_tokenizer(text: str) -> tuple[list[bytes | None], set[int]]:
    """The bytes of each token by id (None for special tokens and holes), and the special ids.

    Raises:
        GrammarError: if it is not such a file, or its tokens do not spell texts in bytes.
    """
    try:
        content = json.loads(text)
        vocabulary = _vocabulary(content["model"])
        added = content.get("added_tokens") or []
    except (ValueError, KeyError, TypeError) as error:
        raise GrammarError(
            f"this is not a tokenizer.json ({error!r}): give the file of a fast tokenizer"
        ) from error
    kinds = {part["type"] for part in _parts(content)}
    replaced = _space_sign(content)
    byte_level = "ByteLevel" in kinds
    if not byte_level and replaced is None and "ByteFallback" not in kinds:
        raise GrammarError(
            f"a {content['model'].get('type')} tokenizer with {sorted(kinds) or 'no decoder'} does "
            "not spell texts byte by byte: give Vocabulary(tokens, stop_ids) the bytes of its "
            "tokens"
        )
    last = max([*vocabulary.values(), *(token["id"] for token in added)], default=-1)
    tokens: list[bytes | None] = [None] * (last + 1)

    def spelled(token: str) -> bytes:
        return _byte_level(token) if byte_level else _plain(token, replaced, kinds)

    for token, id in vocabulary.items():
        tokens[id] = spelled(token)
    special = {token["id"] for token in added if token["special"]}
    for token in added:
        # Decoders read an added token as any other, in whatever alphabet it was meant.
        whole = _whole_characters(spelled(token["content"]))
        tokens[token["id"]] = None if token["special"] else whole
    return tokens, special


def _vocabulary(model: dict[str, Any]) -> dict[str, int]:
    if isinstance(model["vocab"], dict):
        return model["vocab"]
    return {token: id for id, (token, _) in enumerate(model["vocab"])}  # a Unigram model


def _parts(content: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The decoder and the pre-tokenizer, with the members of sequences."""
    pending = [content.get("decoder"), content.get("pre_tokenizer")]
    while pending:
        part = pending.pop()
        if part is None:
            continue
        pending += part.get("decoders", []) + part.get("pretokenizers", [])
        if part["type"] != "Sequence":
            yield part


def _space_sign(content: dict[str, Any]) -> str | None:
    """What stands for a space, if anything does."""
    for part in _parts(content):
        if part["type"] == "Metaspace":
            return str(part.get("replacement", "▁"))
        if part["type"] == "Replace" and part.get("content") == " ":
            sign = part["pattern"].get("String")
            if sign:
                return str(sign)
    return None


def _plain(token: str, space_sign: str | None, kinds: set[str]) -> bytes:
    fallback = _FALLBACK.match(token) if "ByteFallback" in kinds else None
    if fallback:
        return bytes([int(fallback[1], 16)])
    return (token.replace(space_sign, " ") if space_sign else token).encode()


def _byte_level(token: str) -> bytes:
    try:
        return bytes(_BYTE_OF[char] for char in token)
    except KeyError:
        return token.encode()  # as the decoder does with tokens outside of the alphabet


def _whole_characters(text: bytes) -> bytes | None:
    """The same, or None where a decoder would put a sign for bytes that are no character."""
    try:
        text.decode()
    except UnicodeDecodeError:
        return None
    return text


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's alphabet: printable Latin-1 characters are themselves, others follow from U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if byte not in set(printable))
    alphabet.update({chr(0x100 + place): byte for place, byte in enumerate(others)})
    return alphabet


_BYTE_OF = _byte_alphabet()
