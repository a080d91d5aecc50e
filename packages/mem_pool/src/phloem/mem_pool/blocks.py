"""Names of blocks of KV in a store: a chain of hashes over all that the KV depends on.

The names are equal in every process and on every machine. What a block is a function of, and
nothing else, goes into its name: the model and the form of its KV (`fingerprint`), the namespace,
and all tokens from the first one on.
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

from phloem.mem_pool.tree import Namespace

BLOCK_TOKENS = 64
"""Tokens of a block, unless a page has more."""
TOKEN_BYTES = 4

Tokens = npt.NDArray[np.int32]


def chain(fingerprint: str, namespace: Namespace, tokens: Tokens, block: int) -> list[bytes]:
    """What stands for the tokens up to each border of a block, 32 bytes each; the first one for
    none. The name of a block is what stands for the tokens up to its end.

    SHA-256 over the one before it and the block's tokens as little-endian int32.

    Raises:
        TypeError: the namespace has parts that are not equal in every process.
    """
    start = f"{block}:{len(fingerprint)}:{fingerprint}".encode() + _encoded(namespace)
    links = [hashlib.sha256(start).digest()]
    data = _packed(tokens)
    size = block * TOKEN_BYTES
    for end in range(size, len(data) + 1, size):
        links.append(hashlib.sha256(links[-1] + data[end - size : end]).digest())
    return links


def tail_name(link: bytes, first_page: Tokens) -> bytes:
    """The name of what goes on from a border of a block and ends before the next one. Its first
    page tells it apart; what follows stands in it.
    """
    return hashlib.sha256(link + b"tail" + _packed(first_page)).digest()


def _packed(tokens: Tokens) -> bytes:
    return tokens.astype("<i4", copy=False).tobytes()


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
