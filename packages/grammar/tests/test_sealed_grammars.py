"""Serialized grammars of every backend: damage anywhere is told, and never loaded."""

from __future__ import annotations

import pytest
from library_support import VOCABULARY

from phloem.grammar import Constraint, GrammarError, create_backend
from phloem.grammar.sealed import seal, unseal


@pytest.mark.parametrize("name", ["fsm", "auto", "xgrammar", "llguidance"])
@pytest.mark.parametrize("constraint", [Constraint.choice(["one", "two"]), Constraint.regex("a+")])
def test_a_changed_bit_or_a_missing_byte_is_damage(name, constraint):
    if name in ("xgrammar", "llguidance"):
        pytest.importorskip(name)
    backend = create_backend(name, VOCABULARY)
    data = backend.compile(constraint).serialize()
    assert backend.deserialize(data).accepts("one" if constraint.kind == "choice" else "aa")
    for place in range(0, len(data), max(len(data) // 97, 1)):
        changed = bytearray(data)
        changed[place] ^= 1 << place % 8
        for damaged in (bytes(changed), data[:place], data[:place] + data[place + 1 :]):
            with pytest.raises(GrammarError):
                backend.deserialize(damaged)
    with pytest.raises(GrammarError, match="damaged"):
        backend.deserialize(data + b"\n")


def test_a_seal_holds_any_bytes_and_tells_who_made_it():
    for body in (b"", b"\n\n", bytes(range(256))):
        data = seal(body, backend="mine", kind="regex")
        assert unseal(data, backend="mine") == ({"backend": "mine", "kind": "regex"}, body)
        with pytest.raises(GrammarError, match="'mine', and this"):
            unseal(data, backend="other")
        with pytest.raises(GrammarError, match="version None"):
            unseal(data, version="1")
