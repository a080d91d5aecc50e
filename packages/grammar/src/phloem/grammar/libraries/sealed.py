"""Serialized grammars of backends: a body with a header that says who can read it."""

from __future__ import annotations

import json

from phloem.grammar.errors import GrammarError


def seal(body: bytes, **header: str) -> bytes:
    """`body` behind a header line of names and values."""
    return json.dumps(header, sort_keys=True, separators=(",", ":")).encode() + b"\n" + body


def unseal(data: bytes, **header: str) -> bytes:
    """The body of what `seal` made with this very header.

    Raises:
        GrammarError: if there is no header, or one of another backend, version or vocabulary.
    """
    line, newline, body = data.partition(b"\n")
    try:
        found = json.loads(line)
    except ValueError as error:
        raise GrammarError("a serialized grammar is damaged: compile it again") from error
    if not newline or not isinstance(found, dict):
        raise GrammarError("a serialized grammar is damaged: compile it again")
    for name, value in header.items():
        if found.get(name) != value:
            raise GrammarError(
                f"a serialized grammar has {name} {found.get(name)!r}, and this backend "
                f"{value!r}: compile it again"
            )
    return body
