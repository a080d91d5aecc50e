"""Regular expressions beside Python's `re`, the notation of ECMAScript, and limits."""

from __future__ import annotations

import random
import re
import warnings
from itertools import product

import pytest

from phloem.grammar.dfa import Budget, Dfa
from phloem.grammar.errors import ConstraintTooComplex, GrammarError, UnsupportedConstraint
from phloem.grammar.regex import parse, search_dfa

ALPHABET = "ab\n"
ALL_TO_8 = ["".join(chars) for n in range(9) for chars in product(ALPHABET, repeat=n)]
ALL_TO_5 = [text for text in ALL_TO_8 if len(text) <= 5]

ATOMS = ["a", "b", "ab", ".", r"\w", r"\W", r"\s", "[ab]", "[^a]", r"[^\s]", "[a-c]", r"\n", "c?"]
PLACES = ["^", "$", r"\b", r"\B", r"\A", r"\Z", "(?m:^)", "(?m:$)"]
FLAGGED = ["(?s:.)", "(?i:A)", "(?i:[^B])", "(?x: a b )"]
COUNTS = ["*", "+", "?", "{2}", "{1,3}", "{,2}", "{2,}", "*?", "+?", "{1,2}?"]


def random_pattern(choose, depth):
    roll = choose.random()
    if depth == 0 or roll < 0.25:
        return choose.choice(choose.choices([ATOMS, PLACES, FLAGGED], [8, 2, 1])[0])
    if roll < 0.55:
        return random_pattern(choose, depth - 1) + random_pattern(choose, depth - 1)
    inner = random_pattern(choose, depth - 1)
    if roll < 0.75:
        return f"(?:{inner}|{random_pattern(choose, depth - 1)})"
    if roll < 0.8:
        return f"({inner}|)"
    return f"(?:{inner})" + choose.choice(COUNTS)


def random_patterns(seed, count):
    choose = random.Random(seed)
    return [random_pattern(choose, choose.randint(2, 5)) for _ in range(count)]


def differing(dfa, matches, texts):
    return [text for text in texts if dfa.accepts(text.encode()) != bool(matches(text))]


@pytest.mark.parametrize("seed", range(8))
def test_what_matches_is_what_fullmatch_matches(seed):
    for pattern in random_patterns(seed, 25):
        assert not differing(parse(pattern), re.compile(pattern).fullmatch, ALL_TO_8), pattern


@pytest.mark.parametrize("seed", range(100, 104))
def test_what_contains_a_match_is_what_search_finds(seed):
    for pattern in random_patterns(seed, 25):
        dfa = search_dfa(pattern, "python")
        assert not differing(dfa, re.compile(pattern).search, ALL_TO_5), pattern


@pytest.mark.parametrize(
    "pattern",
    [
        *(r"\w", r"\d", r"\s", ".", r"[^\W\d_]", r"(?a)\w", r"[\d\-x]", "[é-\U00010400]"),
        *("[^é日😀]", "(?i)k", "(?i)\u017f", "(?i)ß", "(?i)İ", "(?i)\u0131", "(?i)\u03c3", "(?i)µ"),
        *("(?i)[^k]", "(?ia)[k-s]"),
    ],
)
def test_characters_of_all_of_unicode_match_as_in_re(pattern):
    codes = [*range(0x3000), *range(0x3000, 0xD800, 97), *range(0xE000, 0x110000, 997)]
    chars = [chr(code) for code in codes]
    assert not differing(parse(pattern), re.compile(pattern).fullmatch, chars)


@pytest.mark.parametrize(
    ("pattern", "legal", "illegal"),
    [
        (r"\x41\u00e9\U0001F600\N{SNOWMAN}", ["Aé😀☃"], ["Aé😀"]),
        (r"\101\0\a\f\v\t", ["A\0\a\f\v\t"], ["A0"]),
        (r"[\b\]\-\\^]", ["\b", "]", "-", "\\", "^"], ["b"]),
        (r"[\1\60]", ["\1", "0"], ["1"]),
        ("[]a]", ["]", "a"], ["[]a]", ""]),
        ("[^]a]", ["b"], ["]", "a"]),
        ("x{,2}y{}z{a}", ["y{}z{a}", "xxy{}z{a}"], ["xxxy{}z{a}"]),
        ("(?P<year>[0-9]{4})(?#what)-(?:x)", ["2024-x"], ["224-x"]),
        ("(?x) a b # the end\n c", ["abc"], ["a b c"]),
        ("(?i:s)(?-i:s)", ["Ss", "\u017fs"], ["sS"]),
        ("(?i)(?-i:a)b", ["aB"], ["Ab"]),
        ("", [""], ["a"]),
        ("(|a)+", ["", "aaa"], ["b"]),
    ],
)
def test_python_notation_means_what_it_means_in_re(pattern, legal, illegal):
    dfa, expected = parse(pattern), re.compile(pattern)
    for text in legal + illegal:
        assert bool(expected.fullmatch(text)) == (text in legal)
        assert dfa.accepts(text.encode()) == (text in legal), text


@pytest.mark.parametrize(
    ("pattern", "legal", "illegal"),
    [
        (r"^\d+$", ["12"], ["٣", "a1", "12\n"]),
        (r"^\w$", ["a", "_"], ["é"]),
        (r"^\s$", ["\ufeff", "\u2003", "\n"], ["\u0085", "a"]),
        (r"^\S$", ["\u0085"], ["\ufeff"]),
        (r"^.$", ["a", "😀", "\u0085"], ["\u2028", "\r", "aa"]),
        (r"^\p{Lu}\P{L}\p{Letter}$", ["É1é"], ["é1é"]),
        (r"^[\p{digit}x]+$", ["٣x"], ["a"]),
        (r"^\uD83D\uDE00\u{1F600}\x41\cJ\/$", ["😀😀A\n/"], ["😀A\n/"]),
        (r"^[^]$", ["\n"], [""]),
        (r"^(?<name>a)|b$", ["ax", "xb"], ["x"]),
        ("a", ["a", "xax"], ["", "x"]),
        (r"\bno\b", ["no", "say no!"], ["know", "no_"]),
        (r"^[\w-.]+$", ["a-b.c"], ["a b"]),
        ("", ["", "anything"], []),
    ],
)
def test_ecma_notation_is_searched_for_in_the_text(pattern, legal, illegal):
    dfa = search_dfa(pattern)
    assert [text for text in legal if not dfa.accepts(text.encode())] == []
    assert [text for text in illegal if dfa.accepts(text.encode())] == []


@pytest.mark.parametrize(
    "pattern",
    [
        *(
            "^",
            "$",
            "^$",
            "^^a$$",
            "^a",
            "a$",
            "^ab$",
            "^a|b$",
            "^a|b|c$|ab",
            "a|ba",
            "(^a|b$)",
            "$a",
        ),
        *("b^", "(?:^|b)a(?:b|$)", "a^|$", "(?:^a$)", "^(?:a|b)+$", "^a{2}$|^$", r"^a\b", "|^a"),
    ],
)
def test_anchors_of_a_pattern_that_is_searched_for_are_those_of_re(pattern):
    dfa = search_dfa(pattern)
    for text in ALL_TO_5:
        if "\n" not in text:  # where `$` of ECMAScript differs
            assert dfa.accepts(text.encode()) == (re.search(pattern, text) is not None), text


@pytest.mark.parametrize(
    ("pattern", "legal", "illegal"),
    [
        (r"[^]a]", "[^-é", "]a"),
        (r"[]a]", "]a", "[-"),
        (r"[^^]", "a]", "^"),
        (r"[a^]", "a^", "b]"),
        (r"[-a]", "-a", "b"),
        (r"[a-]", "a-", "b"),
        (r"[0-9-]", "059-", "a/:"),
        (r"[^0-9a-z]", "A-é", "09az"),
        (r"(?i)[a-z]", "azAZK\u212a", "0-"),
        (r"[^é-日]", "a\u00e8月", "é日\u0400"),
    ],
)
def test_brackets_are_those_of_re(pattern, legal, illegal):
    dfa = parse(pattern)
    for char in legal + illegal:
        assert dfa.accepts(char.encode()) == (re.fullmatch(pattern, char) is not None), char
        assert dfa.accepts(char.encode()) == (char in legal), char


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("[é-日]{2,3}", "(?:[é-\u65e4]|日){2}(?:[é-日]|)"),
        (r"(?:[^a]|a)*", r"(?s:.)*"),
        (r"(?:\w|[^a-z])*x", r"(?s:.)*x"),
        (r"(?:é|è)+", r"[èé][è-é]*"),
        ("(?:a[\ud800]|b)c?", "bc|b"),
        ("a(?:[\ud800-\udfff]*|b)", "a|ab"),
        ("(?:[\ud7ff-\ue000])", "[\ud7ff\ue000]"),
        (r"(?:){2000000000}a(?:){0,2000000000}", "a"),
        ("b(?:(?:aa)*|a(?:aa)*)|ca*", "[bc]a*"),
        ("a(?:b|c)*|d[bc]*[b-c]*|e(?:[bc][bc])*[bc]?", "[ade][bc]*"),
        ("[ab]*c|(?:aa*|b(?:a*b*)*)c", "[ab]*c"),
        (r"(?:a+b?){2,}", r"a+(?:b|a)?(?:a+b?)+|a+ba+b?"),
    ],
)
def test_patterns_of_the_same_texts_are_equal_automata(one, other, monkeypatch):
    texts = [parse(one), parse(other)]
    monkeypatch.setattr("phloem.grammar.dfa.minimize._SMALL", -1)
    texts += [parse(one), Dfa(parse(one).table)]
    assert len({(dfa.serialize(), dfa) for dfa in texts}) == 1


@pytest.mark.parametrize(
    ("pattern", "offset", "keyword"),
    [
        (r"ab(?=c)", "2", "lookahead"),
        (r"(?!c)", "0", "lookahead"),
        (r"(?<=c)", "0", "lookbehind"),
        (r"(?<!c)", "0", "lookbehind"),
        (r"(a)\1", "3", r"\1"),
        (r"(?P<n>a)(?P=n)", "8", "backreference"),
        (r"(a)(?(1)b|c)", "3", "conditional group"),
        (r"(?>a)", "0", "atomic group"),
        (r"xa*+", "2", "possessive quantifier"),
        (r"(?a:\b)\b", "7", r"\b"),
    ],
)
def test_what_no_automaton_can_follow_is_refused_by_place_and_name(pattern, offset, keyword):
    with pytest.raises(UnsupportedConstraint) as refusal:
        parse(pattern)
    assert (refusal.value.pointer, refusal.value.keyword) == (offset, keyword)


@pytest.mark.parametrize(
    "pattern",
    [
        *("(", ")", "a)", "[", "[]", "[^]", "*", "+a", "a**", "a{2}{3}", "a{3,2}", "^*", "(?i"),
        *("(?z)a", "(?P<1>a)", "\\", r"\q", r"\x4", r"\u12", r"\U00110000", "[b-a]"),
        *(r"\N{no such}", r"[\d-z]", r"[a-\d]", r"\p{L}", "(?#", r"[\8]", r"\777"),
    ],
)
def test_what_re_holds_malformed_is_refused(pattern):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(re.error):
            re.compile(pattern)
    with pytest.raises(GrammarError):
        parse(pattern)


def test_flags_for_the_whole_pattern_stand_at_its_beginning():
    assert parse("(?i)(?s)a.").accepts(b"A\n")
    with pytest.raises(GrammarError, match="offset 1"):
        parse("a(?i)b")


@pytest.mark.parametrize("pattern", [r"\k<a>", r"\1", r"\p{Script=Greek}", r"(?=a)"])
def test_ecma_constructs_that_are_not_supported_are_named(pattern):
    with pytest.raises(UnsupportedConstraint):
        parse(pattern, "ecma")


@pytest.mark.parametrize(
    "pattern", [r"\p{", r"\pL", r"\a", r"\u{110000}", r"\u{x}", "(?i)a", "a{2"]
)
def test_what_ecma_does_not_know_is_malformed_or_text(pattern):
    if pattern == "a{2":
        assert parse(pattern, "ecma") == Dfa.literal(b"a{2")
        return
    with pytest.raises(GrammarError):
        parse(pattern, "ecma")


@pytest.mark.parametrize(
    "pattern",
    [
        *("(a{1,1000}){1,1000}", "(a|b)*a(a|b){24}", "((a{1,40}){1,40}){1,40}", "a{999999999}"),
        *("(" * 2000 + ")" * 2000, "(a?){3000}", r"(\w+\s?){1,500}", "a{" + "9" * 50 + "}"),
    ],
)
def test_patterns_that_explode_reach_a_limit(pattern):
    with pytest.raises(ConstraintTooComplex):
        parse(pattern, budget=Budget.of_seconds(0.5, 20_000))


def test_large_but_regular_counts_are_fine():
    assert parse("[a-z]{1,1000}").longest == 1000
    assert parse(r"(\w{1,20} ){1,4}").accepts(("é" * 20 + " ").encode() * 4)
    assert parse(".{0,1000}").states == 1000 * 8 + 1


def test_nothing_but_text_is_matched_so_surrogates_are_not():
    assert parse("[\ud800-\udfff]").is_empty
    assert not parse(".").accepts("\ud800".encode("utf-8", "surrogatepass"))
