"""Constraints in the process that decodes."""

from __future__ import annotations

import threading

import pytest

from phloem.grammar import Constraint, GrammarError
from phloem.grammar.registry import create_backend
from phloem.grammar.vocabulary import Vocabulary
from phloem.server.grammars import Grammars, Guidance, forced_tokens
from phloem.server.messages import CompiledConstraint, Load

DATE = r"[0-9]{4}-[01][0-9]-[0-3][0-9]"


def vocabulary():
    return Vocabulary([None, *(bytes([byte]) for byte in range(256)), b"20"], stop_ids=[0])


def compiled(pattern, backend="fsm", **options):
    constraint = Constraint.regex(pattern)
    data = create_backend("fsm", vocabulary()).compile(constraint).serialize()
    return CompiledConstraint.of(Load(constraint.key, backend, data), **options)


@pytest.fixture
def grammars():
    return Grammars("fsm", vocabulary, steering=True)


class TestGrammars:
    def test_without_a_constraint_there_is_no_guidance_and_nothing_is_made(self):
        def never():
            raise AssertionError("nobody asked for it")

        assert Grammars("fsm", never, steering=True).guidance(None) == Guidance(None, False, None)

    def test_a_compiled_constraint_becomes_a_matcher_at_the_beginning(self, grammars):
        first, second = (grammars.guidance(compiled(DATE)) for _ in range(2))
        assert first.matcher.accept(257)
        assert first.matcher.accept(1 + ord("1"))
        assert not first.matcher.accept(1 + ord("x"))
        assert second.matcher.accept(1 + ord("9")), "they do not share a state"

    def test_the_constraint_says_how_it_is_followed_or_the_configuration_does(self):
        for configured in (True, False):
            made = Grammars("fsm", vocabulary, steering=configured)
            assert made.guidance(compiled(DATE)).steer == configured
            assert made.guidance(compiled(DATE, steering=not configured)).steer != configured
            assert made.guidance(compiled(DATE)).jump_forward is None
            assert made.guidance(compiled(DATE, jump_forward=False)).jump_forward is False

    def test_what_it_needs_is_made_once(self):
        made = []

        def counted():
            made.append(threading.current_thread())
            return vocabulary()

        grammars = Grammars("fsm", counted, steering=True)
        grammars.prepare()
        grammars.guidance(compiled(DATE))
        grammars.prepare().result()
        assert len(made) == 1
        assert made[0] is not threading.current_thread()

    def test_damaged_bytes_and_those_of_another_backend_are_refused(self, grammars):
        with pytest.raises(GrammarError):
            grammars.guidance(CompiledConstraint.of(Load("key", "fsm", b"no grammar")))
        with pytest.raises(GrammarError, match="llguidance"):
            grammars.guidance(compiled(DATE, backend="llguidance"))

    def test_a_backend_that_cannot_be_made_is_an_error_of_the_constraint(self):
        def fails():
            raise RuntimeError("no tokenizer")

        with pytest.raises(GrammarError, match="no tokenizer"):
            Grammars("fsm", fails, steering=True).guidance(compiled(DATE))


class TestForcedTokens:
    def test_tokens_spell_the_text_that_was_encoded(self, byte_level):
        forced = forced_tokens(byte_level)
        for text in ("name", '", "age": ', " grüße 日本", ""):
            ids = forced.encode(text.encode())
            assert b"".join(map(forced.token_bytes, ids)) == text.encode()

    def test_half_a_character_has_no_tokens(self, byte_level):
        assert forced_tokens(byte_level).encode("é".encode()[:1]) is None

    def test_special_tokens_spell_nothing(self, byte_level):
        forced = forced_tokens(byte_level)
        special = min(byte_level.special_ids)
        assert forced.token_bytes(special) == b""
        assert forced.token_bytes(10**6) == b""
