"""Serialized grammars of all backends: a body with a header that says who can read it, and a hash.

The hash tells damage, not forgery: who may write compiled constraints is trusted by who reads them.
"""

from __future__ import annotations

import hashlib
import json
from typing import NamedTuple

from phloem.grammar.errors import GrammarError

_DIGEST_BYTES = 32


class Unsealed(NamedTuple):
    """What was sealed."""

    header: dict[str, str]
    body: bytes


def seal(body: bytes, **header: str) -> bytes:
    """`body` behind a hash of all that follows, and a line of names and values."""
    line = json.dumps(header, sort_keys=True, separators=(",", ":")).encode()
    content = line + b"\n" + body
    return hashlib.sha256(content).digest() + content


def unseal(data: bytes, **header: str) -> Unsealed:
    """What `seal` made with a header that has these values, among others.

    Raises:
        GrammarError: if it is damaged, or of another backend, version or vocabulary.
    """
    digest, content = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
    if hashlib.sha256(content).digest() != digest:
        raise GrammarError("a serialized grammar is damaged: compile it again")
    line, _, body = content.partition(b"\n")
    found = json.loads(line)
    for name, value in header.items():
        if found.get(name) != value:
            raise GrammarError(
                f"a serialized grammar has {name} {found.get(name)!r}, and this backend "
                f"{value!r}: compile it again"
            )
    return Unsealed(found, body)
