"""Names of blocks of KV in a store: a chain of hashes over all that the KV depends on.

The names are equal in every process and on every machine. What a block is a function of, and
nothing else, goes into its name: the model and the form of its KV (`fingerprint`), the namespace,
and all tokens from the first one on.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from phloem.mem_pool.tree import Namespace

BLOCK_TOKENS = 64
"""Tokens of a block, unless a page has more."""


def block_names(fingerprint: str, namespace: Namespace, tokens: Any, block: int) -> list[bytes]:
    """The name of each whole block of `tokens`: 32 bytes, SHA-256 over the name before it and the
    block's tokens as little-endian int32; the first one's predecessor stands for the rest.

    Raises:
        TypeError: the namespace has parts that are not equal in every process.
    """
    seed = f"{block}:{len(fingerprint)}:{fingerprint}".encode() + _encoded(namespace)
    name = hashlib.sha256(seed).digest()
    data = np.asarray(tokens).astype("<i4", copy=False).tobytes()
    names = []
    for end in range(block * 4, len(data) + 1, block * 4):
        name = hashlib.sha256(name + data[end - block * 4 : end]).digest()
        names.append(name)
    return names


def _encoded(part: object) -> bytes:
    """A part of a namespace as bytes; different parts give different bytes, whatever follows."""
    if part is None:
        return b"n"
    if type(part) is int:
        return b"i%d;" % part
    if type(part) is str:
        # Also what is no valid text (a lone surrogate) is told apart.
        text = part.encode("utf-8", "surrogatepass")
        return b"s%d:" % len(text) + text
    if type(part) is bytes:
        return b"b%d:" % len(part) + part
    if type(part) is tuple:
        return b"t%d:" % len(part) + b"".join(map(_encoded, part))
    raise TypeError(
        f"namespace part {part!r} is a {type(part).__name__}: a stored namespace is made of str, "
        "int, bytes, None or tuples of these, which are the same in every process"
    )
