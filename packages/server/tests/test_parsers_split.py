"""Every parser tells the same of a text however it is cut into pieces, and all that is in it."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phloem.server.parsers import CallArguments, CallBegin, CallEnd, Content, PlainText, Reasoning
from phloem.server.parsers.constrained import CallList, NamedCall
from phloem.server.parsers.registry import REASONING_PARSERS, TOOL_CALL_PARSERS, Notation
from phloem.server.parsers.thinking import ThinkingParser

TOOLS = ("f", "get-1", "longer_name")
TOOL_FORMATS = TOOL_CALL_PARSERS[2:]
BAR = "\uff5c"

MARKS = sorted({m for name in TOOL_FORMATS for m in Notation(name).marks} | {"<think>", "</think>"})
STRINGS = (
    st.text(max_size=5)
    | st.sampled_from(['}"]{', "\\", "é\u2028🐎", '{"name": "f"}', "')]", *MARKS])
    | st.sampled_from(MARKS).flatmap(lambda m: st.sampled_from([m[:i] for i in range(len(m))]))
)
VALUES = st.recursive(
    STRINGS | st.integers() | st.booleans() | st.none(),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(STRINGS, inner, max_size=2),
    max_leaves=4,
)
NAMES = st.sampled_from([*TOOLS, "unknown"])
ARGUMENTS = st.dictionaries(st.sampled_from(["a", "b", "name", "arguments"]), VALUES, max_size=3)
CALLS = st.lists(st.tuples(NAMES, ARGUMENTS), max_size=3)
TEXTS = st.lists(STRINGS | st.just("Well. "), max_size=3).map("".join)


def dumped(value, spaced=True):
    separators = (", ", ": ") if spaced else (",", ":")
    return json.dumps(value, ensure_ascii=False, separators=separators)


def call_object(name, arguments, key="arguments", spaced=True):
    return dumped({"name": name, key: arguments}, spaced)


def hermes(calls):
    return "\n".join(f"<tool_call>\n{call_object(*call)}\n</tool_call>" for call in calls)


def llama3(calls):
    return "".join(
        ["<|python_tag|>" * bool(calls), "; ".join(call_object(*c, "parameters") for c in calls)]
    )


def mistral(calls):
    listed = ", ".join(call_object(*c, spaced=False) for c in calls)
    return f"[TOOL_CALLS] [{listed}]" if calls else ""


def mistral_named(calls):
    return "".join(f"[TOOL_CALLS]{name}[ARGS]{dumped(arguments)}" for name, arguments in calls)


def pythonic(calls):
    listed = ", ".join(
        f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"
        for name, arguments in calls
    )
    return f"<|python_start|>[{listed}]<|python_end|>" if calls else ""


def deepseek(calls, fenced=True):
    def one(name, arguments):
        text = dumped(arguments)
        body = f"function<{BAR}tool▁sep{BAR}>{name}\n```json\n{text}\n```"
        if not fenced:
            body = f"{name}<{BAR}tool▁sep{BAR}>{text}"
        return f"<{BAR}tool▁call▁begin{BAR}>{body}<{BAR}tool▁call▁end{BAR}>"

    listed = "\n".join(one(*call) for call in calls)
    return f"<{BAR}tool▁calls▁begin{BAR}>{listed}<{BAR}tool▁calls▁end{BAR}>" if calls else ""


def harmony(calls):
    return "".join(
        f"<|start|>assistant<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>"
        f"{dumped(arguments)}<|call|>"
        for name, arguments in calls
    )


WRITERS = [
    ("hermes", hermes),
    ("qwen", hermes),
    ("llama3-json", llama3),
    ("mistral", mistral),
    ("mistral", mistral_named),
    ("pythonic", pythonic),
    ("deepseek", deepseek),
    ("deepseek", lambda calls: deepseek(calls, fenced=False)),
    ("gpt-oss", harmony),
]


def joined(parts):
    """Parts with those that go on with one text made one."""
    made = []
    for part in parts:
        last = made[-1] if made else None
        if isinstance(part, CallBegin | CallEnd) or type(part) is not type(last):
            made.append(part)
        elif isinstance(part, CallArguments):
            assert part.index == last.index
            made[-1] = CallArguments(part.index, last.text + part.text)
        else:
            made[-1] = type(part)(last.text + part.text)
    return made


def read(parser, pieces):
    parts = [part for piece in pieces for part in parser.feed(piece)]
    assert not any(part.text == "" for part in parts if isinstance(part, Content | Reasoning))
    return joined([*parts, *parser.end()])


def check_splits(make, text, cuts):
    """All ways of cutting a text give the same; what it is."""
    whole = read(make(), [text])
    assert read(make(), text) == whole, "character by character"
    bounds = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    assert read(make(), [text[a:b] for a, b in pairwise(bounds)]) == whole
    for cut in range(len(text)):
        assert read(make(), [text[:cut], text[cut:]]) == whole, f"cut at {cut}"
    return whole


def calls_in(parts):
    """Names and arguments of calls that are whole."""
    begun = [part for part in parts if isinstance(part, CallBegin)]
    ended = {part.index for part in parts if isinstance(part, CallEnd)}
    texts = {part.index: part.text for part in parts if isinstance(part, CallArguments)}
    assert [part.index for part in begun] == list(range(len(begun)))
    return [(p.name, json.loads(texts[p.index])) for p in begun if p.index in ended]


def content_of(parts):
    return "".join(part.text for part in parts if isinstance(part, Content))


CUTS = st.lists(st.integers(0, 1000), max_size=4)


@pytest.mark.parametrize(("name", "write"), WRITERS)
@settings(max_examples=12, deadline=None)
@given(before=TEXTS, calls=CALLS, after=TEXTS, length=st.integers(0, 400), cuts=CUTS)
def test_a_text_means_the_same_however_it_is_cut(name, write, before, calls, after, length, cuts):
    """Cases TO-01 and TO-04: also of texts that end anywhere."""
    text = f"{before}{write(calls)}{after}"
    for given_text in (text, text[:length]):
        check_splits(lambda: Notation(name).parser("", TOOLS), given_text, cuts)


@pytest.mark.parametrize(("name", "write"), WRITERS)
@settings(max_examples=25, deadline=None)
@given(calls=st.lists(st.tuples(st.sampled_from(TOOLS), ARGUMENTS), min_size=1, max_size=3))
def test_all_calls_are_found_with_their_arguments(name, write, calls):
    """Case TO-03: also those behind a call without arguments."""
    if write is pythonic:
        names = [key.isidentifier() for _, arguments in calls for key in arguments]
        assert all(names)
    for given_calls in (calls, [("f", {}), *calls]):
        parts = read(Notation(name).parser("", TOOLS), [write(given_calls)])
        assert calls_in(parts) == given_calls
        assert content_of(parts) == ""


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(REASONING_PARSERS[2:4]), TEXTS, TEXTS, CALLS, st.booleans(), st.booleans(), CUTS
)
def test_reasoning_ends_at_its_tag(name, thoughts, answer, calls, tagged, separate, cuts):
    """Whatever stands behind is read as if nothing had stood before."""
    notation = Notation("hermes", name)
    thoughts, answer = thoughts.replace("</think>", ""), answer.lstrip()
    rest = answer + hermes(calls)
    text = "<think>" * tagged + thoughts + "</think>" + rest

    def make():
        return notation.parser("", TOOLS, separate=separate)

    whole = check_splits(make, text, cuts)
    if separate and (tagged or name == "deepseek-r1"):
        said = "".join(part.text for part in whole if isinstance(part, Reasoning))
        begin = 0 if tagged or not thoughts.lstrip().startswith("<think>") else len("<think>")
        assert said.strip() == thoughts.lstrip()[begin:].strip()
        behind = read(Notation("hermes").parser("", TOOLS), [rest.lstrip(" \t\r\n")])
        assert [part for part in whole if not isinstance(part, Reasoning)] == behind


@settings(max_examples=25, deadline=None)
@given(TEXTS, TEXTS, CALLS, st.integers(0, 400), CUTS)
def test_channels_mean_the_same_however_they_are_cut(thoughts, answer, calls, length, cuts):
    text = f"<|channel|>analysis<|message|>{thoughts}<|end|>{harmony(calls)}"
    text += f"<|start|>assistant<|channel|>final<|message|>{answer}<|return|>"
    notation = Notation("gpt-oss", "gpt-oss")
    for given_text in (text, text[:length], text[len("<|channel|>") :]):
        for separate in (True, False):
            check_splits(
                lambda separate=separate: notation.parser("", TOOLS, separate=separate),
                given_text,
                cuts,
            )


@settings(max_examples=25, deadline=None)
@given(CALLS, st.integers(0, 300), CUTS, TEXTS)
def test_constrained_calls_mean_the_same_however_they_are_cut(calls, length, cuts, thoughts):
    text = f"[{','.join(call_object(*call, spaced=False) for call in calls)}]"
    for given_text in (text, text[:length]):
        check_splits(CallList, given_text, cuts)
        check_splits(lambda: NamedCall("f"), given_text, cuts)
    notation = Notation("hermes", "deepseek-r1")
    check_splits(lambda: notation.parser("", TOOLS, CallList), f"{thoughts}</think>{text}", cuts)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.sampled_from([*MARKS, "{", '"', "name", ":", "f", "[", "(", ")", "}", "]", ","]))
)
def test_nothing_that_looks_like_a_call_breaks_a_parser(pieces):
    """What no call was made of is content, but for marks and white space of those that were."""
    text = "".join(pieces)
    for name in TOOL_FORMATS[:-1]:
        parts = check_splits(lambda name=name: Notation(name).parser("", TOOLS), text, [])
        if not any(isinstance(part, CallBegin) for part in parts):
            assert content_of(parts) == text


def test_only_what_may_begin_a_mark_is_held_back():
    """Case ST-07."""
    parser = ThinkingParser(PlainText(), inside=True)
    assert parser.feed("ab</thin") == [Reasoning("ab")]
    assert parser.feed("g<") == [Reasoning("</thing")]
    assert parser.feed("</think>x</thi") == [Reasoning("<"), Content("x</thi")]
    calls = Notation("hermes").parser("", TOOLS)
    assert calls.feed("a <tool_c") == [Content("a ")]
    assert calls.feed("ar") == [Content("<tool_car")]
