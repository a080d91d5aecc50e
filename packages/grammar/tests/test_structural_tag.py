"""Structural tags against a plain reading of what they say, and through masks."""

from __future__ import annotations

import itertools
import json
import random
import re

import numpy as np
import pytest
from grammar_vocabularies import structural_vocabulary

from phloem.grammar import Constraint, GrammarError, UnsupportedConstraint
from phloem.grammar.fsm_backend import FsmBackend
from phloem.grammar.structural import parse_structural_tag
from phloem.grammar.vocabulary import Vocabulary

STOP = 256
VOCABULARY = Vocabulary(
    [
        *(bytes([byte]) for byte in range(256)),
        None,
        *(
            b"<a",
            b"><",
            b"x<",
            b"</",
            b">x",
            b"</>",
            b"x</>y",
            b"<b>",
            b"y<a>x</>",
            b"\xc3\xa9<",
            b"ab",
        ),
        None,
    ],
    stop_ids=[STOP],
)
BACKEND = FsmBackend(VOCABULARY)


def compiled(tag, backend=BACKEND):
    return backend.compile(Constraint.structural_tag(tag))


def is_legal(tag: dict, text: str, done: bool = False) -> bool:
    """Whether a text is legal, as the description of structural tags says."""
    starts = [(text.find(trigger), trigger) for trigger in tag["triggers"] if trigger in text]
    if not starts:
        return done or not tag.get("at_least_one", False)
    start = min(starts)[0]
    for one in tag["tags"]:
        if not text.startswith(one["begin"], start):
            continue
        content = start + len(one["begin"])
        for end in range(content, len(text) + 1):
            if re.fullmatch(one["regex"], text[content:end]) and text.startswith(one["end"], end):
                rest = text[end + len(one["end"]) :]
                if rest == "" or (not tag.get("stop_after_first") and is_legal(tag, rest, True)):
                    return True
    return False


TAGS = [
    {"triggers": ["<a"], "tags": [{"begin": "<a>", "regex": "x*", "end": "</>"}]},
    {"triggers": ["<"], "tags": [{"begin": "<a", "regex": "[a<]*", "end": "<a"}]},
    {"triggers": ["<a", "xx"], "at_least_one": True,
     "tags": [{"begin": "<a", "regex": "x?", "end": ""}, {"begin": "xx", "regex": "", "end": "a"},
              {"begin": "<ax", "regex": "a+", "end": "x"}]},
    {"triggers": ["a<", "x<"], "stop_after_first": True,
     "tags": [{"begin": "a<", "regex": ".*", "end": "a"},
              {"begin": "x<", "regex": "a", "end": ""}]},
    {"triggers": ["aaa"], "at_least_one": True, "stop_after_first": True,
     "tags": [{"begin": "aaa", "regex": "(ax)*", "end": "a"}]},
]  # fmt: skip


@pytest.mark.parametrize("tag", TAGS, ids=json.dumps)
def test_the_texts_are_those_that_the_description_allows(tag):
    grammar = compiled(tag)
    alphabet = "a<x/>é"
    texts = ["".join(t) for size in range(5) for t in itertools.product("a<xé", repeat=size)]
    rng = random.Random(1)
    parts = ["<a>", "</>", "<a", "xx", *alphabet, "aaa", "a<", "x<"]
    texts += ["".join(rng.choices(parts, k=rng.randint(1, 6))) for _ in range(3000)]
    wrong = [text for text in texts if grammar.accepts(text) != is_legal(tag, text)]
    assert wrong == []
    assert any(grammar.accepts(text) for text in texts)


def legal_tokens(matcher, left=None, vocabulary=VOCABULARY) -> set[int]:
    mask = np.zeros((1, vocabulary.words), np.int32)
    matcher.fill_mask(mask, 0, left)
    return set(np.flatnonzero(np.unpackbits(mask[0].view(np.uint8), bitorder="little")).tolist())


@pytest.mark.parametrize("tag", TAGS, ids=json.dumps)
def test_masks_have_the_tokens_that_span_borders_and_no_others(tag):
    grammar = compiled(tag)
    rng = random.Random(2)
    for _ in range(6):
        matcher, text = grammar.matcher(), b""
        for _ in range(12):
            tokens = legal_tokens(matcher)
            for token, spelled in enumerate(VOCABULARY.tokens):
                assert matcher.fork().accept(token) == (token in tokens)
                if spelled is not None and token in tokens:
                    assert _can_begin(grammar, text + spelled)
            choices = sorted(tokens - {STOP})
            if not choices:
                break
            token = rng.choice([t for t in choices if t > STOP] or choices)
            assert matcher.accept(token)
            text += VOCABULARY.tokens[token]
            assert matcher.is_complete == grammar.accepts(text)


@pytest.mark.parametrize("seed", range(3))
def test_a_content_with_names_of_all_kinds_has_the_masks_that_it_has_alone(seed):
    """Names that are declared, or were used, are told apart within a tag too."""
    vocabulary = structural_vocabulary()
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "name": {"type": "string"}},
        "additionalProperties": {"type": ["string", "object"]},
    }
    backend = FsmBackend(vocabulary, seconds=20)
    tag = {"tags": [{"begin": "<f>", "schema": schema, "end": "</f>"}], "triggers": ["<f>"]}
    rng, seen = random.Random(seed), 0
    for _ in range(8):
        within = backend.compile(Constraint.structural_tag(tag)).matcher()
        alone = backend.compile(Constraint.json_schema(schema)).matcher()
        assert all(within.accept(byte) for byte in b"<f>")
        for _ in range(25):
            legal = legal_tokens(alone, vocabulary=vocabulary)
            if legal & set(vocabulary.stop_ids):
                break
            assert legal_tokens(within, vocabulary=vocabulary) == legal
            seen += 1
            token = rng.choice(sorted(legal))
            assert within.accept(token)
            assert alone.accept(token)
    assert seen > 50


def _can_begin(grammar, text: bytes) -> bool:
    cursor = grammar.automaton.start
    for byte in text:
        cursor = cursor.step(byte)
        if cursor is None:
            return False
    return True


@pytest.mark.parametrize("tag", TAGS, ids=json.dumps)
def test_every_position_leads_to_an_end_within_its_distance(tag):
    grammar = compiled(tag)
    rng = random.Random(4)
    for _ in range(8):
        matcher = grammar.matcher()
        for _ in range(rng.randint(0, 10)):
            choices = sorted(legal_tokens(matcher) - {STOP})
            if choices:
                matcher.accept(rng.choice(choices))
        left = matcher.distance_to_end()
        assert left is not None
        for steps in range(left, 0, -1):
            assert matcher.distance_to_end() <= steps
            choices = sorted(legal_tokens(matcher, steps) - {STOP})
            assert matcher.accept(rng.choice(choices))
        assert matcher.is_complete


def test_free_text_is_utf8_and_ends_with_whole_characters():
    matcher = compiled(TAGS[0]).matcher()
    assert not matcher.accept(0xFF)
    assert matcher.accept(0xC3)
    assert not matcher.is_complete
    assert not matcher.accept(ord("a"))
    assert matcher.accept(0xA9)
    assert matcher.is_complete


def test_the_begin_behind_a_trigger_is_forced():
    tag = {"triggers": ["<f"], "tags": [{"begin": "<fun=go>", "text": "now", "end": "</fun>"}]}
    matcher = compiled(tag).matcher()
    assert matcher.forced() == b""
    assert all(matcher.accept(byte) for byte in b"well <f")
    assert matcher.forced() == b"un=go>now</fun>"


def test_tags_without_triggers_follow_each_other():
    tag = {"tags": [{"begin": "<", "choices": ["a", "b"], "end": ">"}], "separator": ", "}
    grammar = compiled(tag)
    assert [grammar.accepts(text) for text in ("", "<a>", "<a>, <b>")] == [True] * 3
    assert not any(grammar.accepts(text) for text in ("x", "<a><b>", "<a>, ", "<a>,"))
    assert not compiled({**tag, "at_least_one": True}).accepts("")
    once = compiled({**tag, "at_least_one": True, "stop_after_first": True})
    assert once.accepts("<b>")
    assert not once.accepts("<a>, <b>")


NOTATIONS = [
    {"type": "structural_tag", "triggers": ["<f"],
     "structures": [{"begin": "<f>", "regex": "x", "end": "</f>"}]},
    {"type": "structural_tag", "format": {
        "type": "triggered_tags", "triggers": ["<f"], "at_least_one": False,
        "tags": [{"type": "tag", "begin": "<f>", "end": "</f>",
                  "content": {"type": "regex", "pattern": "x"}}]}},
]  # fmt: skip


@pytest.mark.parametrize("tag", NOTATIONS, ids=json.dumps)
def test_other_notations_say_the_same(tag):
    plain = {"triggers": ["<f"], "tags": [{"begin": "<f>", "regex": "x", "end": "</f>"}]}
    expected = parse_structural_tag(Constraint.structural_tag(plain))
    parsed = parse_structural_tag(Constraint.structural_tag(tag))
    assert [(t.begin, t.content, t.end) for t in parsed.tags] == [
        (t.begin, t.content, t.end) for t in expected.tags
    ]
    assert parsed.triggers == expected.triggers


def test_one_tag_alone_is_the_whole_text():
    content = {"type": "const_string", "value": "x"}
    grammar = compiled({"format": {"type": "tag", "begin": "[", "end": "]", "content": content}})
    assert grammar.accepts("[x]")
    assert not grammar.accepts("")


@pytest.mark.parametrize(
    ("tag", "pointer"),
    [
        ({**TAGS[0], "colour": 1}, "/colour"),
        ({"tags": [{"begin": "<", "regex": "x", "end": "", "z": 1}]}, "/tags/0/z"),
        ({"tags": [{"begin": "<", "regex": r"(a)\1", "end": ""}]}, "/tags/0/regex"),
        ({"format": {"type": "sequence", "elements": []}}, "/format/type"),
        ({"format": {"type": "tag", "begin": "<", "end": ">", "content": {"type": "any_text"}}},
         "/format/content/type"),
    ],
)  # fmt: skip
def test_what_is_not_supported_is_named_by_pointer(tag, pointer):
    with pytest.raises(UnsupportedConstraint) as caught:
        compiled(tag)
    assert caught.value.pointer == pointer


@pytest.mark.parametrize(
    "tag",
    [
        [],
        {"tags": []},
        {"tags": [{"begin": "", "text": "x", "end": ""}]},
        {"tags": [{"begin": "<", "end": ">"}]},
        {"tags": [{"begin": "<", "text": "a", "regex": "b", "end": ">"}]},
        {"triggers": ["a"], "tags": [{"begin": "b", "text": "x", "end": ""}]},
        {"triggers": ["b", "a"], "tags": [{"begin": "b", "text": "x", "end": ""}]},
        {"triggers": ["b", "ab"], "tags": [{"begin": "b", "text": "x", "end": ""},
                                           {"begin": "ab", "text": "x", "end": ""}]},
        {"triggers": "<", "tags": [{"begin": "<", "text": "x", "end": ""}]},
        {"tags": [{"begin": "<", "text": "x", "end": ""}], "at_least_one": 1},
        {"tags": [{"begin": "<", "choices": [], "end": ""}]},
        {"tags": [{"begin": "\ud800", "text": "x", "end": ""}]},
    ],
)  # fmt: skip
def test_what_does_not_fit_is_an_error(tag):
    with pytest.raises(GrammarError):
        compiled(tag)


def test_a_serialized_tag_is_the_same_again():
    data = compiled(TAGS[2]).serialize()
    again = FsmBackend(VOCABULARY).deserialize(data)
    for text in ("<a", "xxa", "<axaax", "", "xx"):
        assert again.accepts(text) == is_legal(TAGS[2], text)
    with pytest.raises(GrammarError):
        BACKEND.deserialize(data[:-30])
