"""xgrammar and llguidance behind our contract: texts, masks, ends, the way back and refusals."""

from __future__ import annotations

import random
import re
import sys

import numpy as np
import pytest
from library_support import BACKENDS, SECOND_STOP, SPECIAL, STOP, TWIN, VOCABULARY, made

from phloem.grammar import Constraint, GrammarError, UnsupportedConstraint
from phloem.grammar.vocabulary import Vocabulary


@pytest.fixture(scope="module", params=BACKENDS)
def backend(request):
    return made(request.param)


@pytest.fixture(scope="module")
def llguidance():
    return made("llguidance")


@pytest.fixture(scope="module")
def xgrammar():
    return made("xgrammar")


def legal(matcher) -> set[int]:
    mask = np.full((2, VOCABULARY.words), 0x55555555, np.int32)
    matcher.fill_mask(mask, 1)
    bits = np.unpackbits(mask[1].view(np.uint8), bitorder="little")
    return set(np.flatnonzero(bits).tolist())


def follow(matcher, text: bytes):
    assert all(matcher.accept(byte) for byte in text), text
    return matcher


@pytest.mark.parametrize("choices", [["a", "ab", 'q"\\x', "é💩", "a\nb"], ["", "x"]])
def test_a_choice_is_one_of_the_choices(backend, choices):
    grammar = backend.compile(Constraint.choice(choices))
    assert all(grammar.accepts(choice) for choice in choices)
    assert not any(grammar.accepts(text) for text in ("b", "aab", "éa"))


def random_pattern(rng: random.Random, dots: bool, depth: int = 0) -> str:
    kind = rng.random()
    if depth > 3 or kind < 0.3:
        return rng.choice(
            [
                "a",
                "b",
                "[ab]",
                "[^a]",
                "c",
                "é",
                r"\.",
                r"\n",
                r"[\x41b]",
                r"\x41",
                r"[\u0061-\u0062]",
                *"." * dots,
            ]
        )
    if kind < 0.5:
        return random_pattern(rng, dots, depth + 1) + random_pattern(rng, dots, depth + 1)
    if kind < 0.65:
        one, other = (random_pattern(rng, dots, depth + 1) for _ in range(2))
        return f"(?:{one}|{other})"
    times = rng.choice(["", "*", "+", "?", "{2}", "{1,3}", "{0,2}", "{2,}", "*?"])
    return f"({random_pattern(rng, dots, depth + 1)}){times}"


def test_regular_expressions_match_what_python_matches(backend):
    rng = random.Random(7)
    for _ in range(40):
        pattern = random_pattern(rng, dots=backend.name == "llguidance")
        grammar = backend.compile(Constraint.regex(rng.choice([pattern, f"^(?:{pattern})$"])))
        for _ in range(25):
            text = "".join(rng.choices("abcA\né.\r", k=rng.randint(0, 5)))
            assert grammar.accepts(text) == bool(re.fullmatch(pattern, text)), (pattern, text)


@pytest.mark.parametrize(
    ("pattern", "offset", "construct"),
    [
        (r"a\w", "1", r"\w"),
        (r"a[\d]", "2", r"\d"),
        ("(?=a)b", "0", "(?="),
        ("(?P<n>a)", "0", "(?P"),
        (r"(a)\1", "3", r"\1"),
        ("a^b", "1", "^"),
        ("^a|b$", "0", "^"),
        (r"a\b", "1", r"\b"),
        ("[a&&b]", "0", "&&"),
        ("[]a]", "0", "]"),
        ("a++", "1", "++"),
        ("a{,3}", "1", "{"),
    ],
)
def test_a_construct_that_engines_read_differently_is_refused_by_name(
    backend, pattern, offset, construct
):
    with pytest.raises(UnsupportedConstraint) as caught:
        backend.compile(Constraint.regex(pattern))
    assert (caught.value.pointer, caught.value.keyword) == (offset, construct)


@pytest.mark.parametrize("pattern", ["(a", "a)", "[b-a]", "*a", "a**", "\\"])
def test_what_is_no_regular_expression_is_an_error(backend, pattern):
    with pytest.raises(GrammarError):
        backend.compile(Constraint.regex(pattern))


def test_a_grammar_in_ebnf_generates_its_texts(xgrammar):
    grammar = xgrammar.compile(
        Constraint.ebnf(
            'root ::= term ("+" term)* # a sum\nterm ::= [0-9]+ | "(" root ")" | "i" id | "if"\n'
            "id ::= [a-z]+"
        )
    )
    for text in ("1", "1+22", "(1+2)+3", "if", "ifx"):
        assert grammar.accepts(text)
    for text in ("", "1+", "(1", "i"):
        assert not grammar.accepts(text)


@pytest.mark.parametrize(
    "grammar",
    [
        'rule ::= "a"',
        "root ::= nowhere",
        'root ::= "a',
        "root ::= root",
        'root ::= "a" (="b")',
        'root ::= Regex("a+")',
        'root ::= "a\\x00b"',
        "root ::= [\\x41b]",
    ],
)
def test_a_grammar_that_would_not_be_enforced_is_an_error(xgrammar, grammar):
    with pytest.raises(GrammarError) as caught:
        xgrammar.compile(Constraint.ebnf(grammar))
    assert "/project" not in str(caught.value)


def test_grammars_and_tags_go_elsewhere(llguidance, xgrammar):
    with pytest.raises(UnsupportedConstraint):
        llguidance.compile(Constraint.ebnf('root ::= "a"'))
    for backend in (llguidance, xgrammar):
        with pytest.raises(UnsupportedConstraint):
            backend.compile(Constraint.structural_tag({"tags": []}))


def test_a_mask_has_exactly_the_tokens_that_are_accepted(backend):
    schema = {"type": "object", "properties": {"é": {"type": "array", "items": {}}},
              "required": ["é"], "additionalProperties": False}  # fmt: skip
    constraints = [
        Constraint.json_schema(schema),
        Constraint.regex("(abc)+x?"),
        Constraint.regex(".?" if backend.name == "llguidance" else "[^x]?"),
    ]
    rng = random.Random(3)
    for constraint in constraints:
        matcher = backend.compile(constraint).matcher()
        for _ in range(25):
            tokens = legal(matcher)
            for token in range(VOCABULARY.size + 40):
                fork = matcher.fork()
                assert fork.accept(token) == (token in tokens), token
            going_on = sorted(tokens - {STOP, SECOND_STOP})
            if not going_on:
                break
            assert matcher.accept(rng.choice(going_on))


def test_special_tokens_are_never_matched_by_their_bytes(backend):
    schema = {"type": "array", "items": {"type": "string"}}
    matcher = backend.compile(Constraint.json_schema(schema)).matcher()
    follow(matcher, b'["hello","')
    assert SPECIAL not in legal(matcher)
    assert not any(matcher.accept(token) for token in (SPECIAL, STOP, SECOND_STOP))
    assert follow(matcher, b'"]').is_complete


def test_any_stop_token_ends_a_complete_text(backend):
    matcher = backend.compile(Constraint.regex("(abc)+")).matcher()
    assert not matcher.accept(STOP)
    assert matcher.accept(TWIN)
    assert matcher.is_complete
    assert not matcher.is_terminated
    assert {STOP, SECOND_STOP} <= legal(matcher)
    assert matcher.accept(SECOND_STOP)
    assert matcher.is_terminated
    assert legal(matcher) == set()
    assert not matcher.accept(ord("a"))
    matcher.rollback(1)
    assert not matcher.is_terminated
    assert matcher.accept(ord("a"))


def test_a_text_that_cannot_go_on_is_terminated(backend):
    matcher = backend.compile(Constraint.regex("ab")).matcher()
    assert not follow(matcher, b"a").is_terminated
    assert follow(matcher, b"b").is_terminated
    assert legal(matcher) == {STOP, SECOND_STOP}


def test_rollback_and_fork_are_like_a_fresh_start(backend):
    grammar = backend.compile(Constraint.json_object())
    rng = random.Random(5)
    matcher, taken = grammar.matcher(), []
    for _ in range(120):
        count = rng.randint(0, min(3, len(taken)))
        matcher.rollback(count)
        taken = taken[: len(taken) - count]
        tokens = sorted(legal(matcher))
        assert tokens == sorted(legal(_replayed(grammar, taken)))
        if tokens:
            other = matcher.fork()
            assert other.accept(rng.choice(tokens))
            token = rng.choice(tokens)
            assert matcher.accept(token)
            taken.append(token)
    with pytest.raises(ValueError, match="taken back"):
        matcher.rollback(len(taken) + 1)


def _replayed(grammar, tokens):
    matcher = grammar.matcher()
    assert all(matcher.accept(token) for token in tokens)
    return matcher


def test_forced_text_is_what_leaves_no_choice(backend):
    schema = {"type": "object", "properties": {"name": {"enum": ["one", "other"]}},
              "required": ["name"], "additionalProperties": False}  # fmt: skip
    grammar = backend.compile(Constraint.json_schema(schema, whitespace="compact"))
    matcher = grammar.matcher()
    assert matcher.forced() == b'{"name":"o'
    assert follow(matcher, b'{"name":"ot').forced() == b'her"}'
    assert follow(matcher, b'her"}').forced() == b""
    assert matcher.distance_to_end() is None


def test_a_wider_mask_has_no_bits_beyond_the_vocabulary(backend):
    mask = np.full((1, VOCABULARY.words + 3), -1, np.int32)
    backend.compile(Constraint.regex("[^x]*")).matcher().fill_mask(mask, 0)
    bits = np.unpackbits(mask[0].view(np.uint8), bitorder="little")
    assert bits[: VOCABULARY.size].any()
    assert not bits[VOCABULARY.size :].any()


def test_a_serialized_grammar_is_read_by_an_equal_backend_only(backend):
    grammar = backend.compile(Constraint.json_schema({"type": "integer"}))
    data = grammar.serialize()
    again = type(backend)(VOCABULARY).deserialize(data)
    assert again.accepts("12")
    assert not again.accepts("x")
    assert again.matcher().accept(ord("1"))
    other = Vocabulary([b"1", None], [1])
    with pytest.raises(GrammarError, match="vocabulary"):
        type(backend)(other).deserialize(data)
    for damaged in (b"", b"x", data[:-20], b"{}\n" + data):
        with pytest.raises(GrammarError):
            backend.deserialize(damaged)


def test_a_vocabulary_without_stop_tokens_is_refused(backend):
    with pytest.raises(GrammarError, match="stop"):
        type(backend)(Vocabulary([b"a"], []))


@pytest.mark.parametrize("name", BACKENDS)
def test_a_missing_library_says_what_to_install(name, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=rf"phloem-grammar\[{name}\]"):
        BACKENDS[name](VOCABULARY)


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("error", ["AttributeError", "OSError", "RuntimeError"])
def test_a_library_that_breaks_when_imported_is_a_missing_one(name, error, monkeypatch, tmp_path):
    (tmp_path / f"{name}.py").write_text(f"raise {error}('undefined symbol')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(ImportError, match="undefined symbol"):
        BACKENDS[name](VOCABULARY)


HALF_PAIRS = [b"\xed\xa0\x80", b"a\xed\xbf\xbf", b"\xed\xa0\x80\xed\xb0\x80"]
NO_UTF8 = [*HALF_PAIRS, b"\xff", b"\xc0\x80", b"\xe9", b"\xf4\x90\x80\x80", b"\x80"]


@pytest.mark.parametrize(
    ("constraint", "quote"),
    [(Constraint.regex("[^x]*"), b""), (Constraint.json_schema({"type": "string"}), b'"')],
)
def test_a_text_is_utf8(backend, constraint, quote):
    grammar = backend.compile(constraint)
    assert grammar.accepts(quote + "한\U0010ffff\ud7ff\ue000".encode() + quote)
    assert [text for text in NO_UTF8 if grammar.accepts(quote + text + quote)] == []
    for lone in ("\ud800", "a\udfff"):
        assert not grammar.accepts(f"{quote.decode()}{lone}{quote.decode()}")


@pytest.mark.parametrize("kind", [BACKENDS["xgrammar"], BACKENDS["llguidance"]])
def test_no_tokens_make_half_a_surrogate_pair(kind):
    made(kind.name)
    pieces = [b"\xed\xa0", b"b\xed", b"\xa0\x80", b"\x9f\xbf", b"\xed\x9f\xbf", b"\xa0"]
    vocabulary = Vocabulary([*(bytes([byte]) for byte in range(256)), None, *pieces], [256])
    half, b_first, second, last, character, _ = range(257, 263)

    def legal(matcher):
        mask = np.zeros((1, vocabulary.words), np.int32)
        matcher.fill_mask(mask, 0)
        return set(np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist())

    matcher = kind(vocabulary).compile(Constraint.regex("[^x]*")).matcher()
    assert half not in legal(matcher)
    assert not matcher.accept(half)
    for first in (0xED, b_first):
        before = legal(matcher)
        assert matcher.accept(first)
        going_on = legal(matcher)
        assert {*range(0x80, 0xA0), last} == going_on
        assert not any(matcher.fork().accept(token) for token in (0xA0, 0xBF, second))
        matcher.rollback(1)
        assert legal(matcher) == before
    assert matcher.accept(b_first)
    fork = matcher.fork()
    assert fork.accept(last)
    assert not fork.accept(0x80)
    assert fork.accept(character)
    fork.rollback(2)
    assert not fork.accept(second)
    assert matcher.accept(0x9F)
    assert legal(matcher) >= {0xA0, 0xBF}
    assert matcher.accept(0xA0)
