from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phloem.server.http.blocks import Begun, Blocks, Ended, Grown
from phloem.server.parsers import CallArguments, CallBegin, CallEnd, Content, Reasoning

CALL = [CallBegin(0, "add"), CallArguments(0, '{"a":'), CallArguments(0, "1}"), CallEnd(0)]


def read(*pieces):
    """The blocks of parts that come piece by piece, and all changes."""
    blocks = Blocks()
    changes = [change for parts in pieces for change in blocks.take(parts)]
    changes += blocks.end()
    return [(b.kind, b.name, b.text, b.whole) for b in blocks.all], changes


def test_parts_of_one_kind_are_one_block():
    found, _ = read([Reasoning("a"), Reasoning("b")], [Content("c")], [Content(" d")])
    assert found == [("reasoning", "", "ab", True), ("text", "", "c d", True)]


def test_each_call_is_a_block_with_its_arguments():
    second = [CallBegin(1, "sub"), CallArguments(1, "{}"), CallEnd(1)]
    found, _ = read([Content("so: "), *CALL], second)
    assert found == [
        ("text", "", "so: ", True),
        ("call", "add", '{"a":1}', True),
        ("call", "sub", "{}", True),
    ]


def test_a_call_that_was_cut_is_not_whole():
    found, _ = read(CALL[:2])
    assert found == [("call", "add", '{"a":', False)]


def test_white_space_between_blocks_is_in_none_but_belongs_to_a_text_that_follows():
    found, _ = read([Reasoning("a"), Content("\n"), *CALL, Content(" \n"), Content("x ")])
    assert [(kind, text) for kind, _, text, _ in found] == [
        ("reasoning", "a"),
        ("call", '{"a":1}'),
        ("text", " \nx "),
    ]


def test_white_space_that_is_all_there_is_is_told():
    assert read([Content(" "), Content("\n")])[0] == [("text", "", " \n", True)]


PARTS = st.lists(
    st.one_of(
        st.builds(Content, st.text("ab \n", min_size=1, max_size=3)),
        st.builds(Reasoning, st.text("ab \n", min_size=1, max_size=3)),
        st.just("call"),
    ),
    max_size=8,
)


@given(PARTS, st.data())
def test_blocks_come_one_after_the_other_and_do_not_depend_on_the_pieces(parts, data):
    flat = [p for part in parts for p in (CALL if part == "call" else [part])]
    cut = data.draw(st.integers(0, len(flat)))
    found, changes = read(flat[:cut], flat[cut:])
    assert found == read(flat)[0]
    assert found == read(*([part] for part in flat))[0]
    texts = [""] * len(found)
    current = -1
    for change in changes:
        if isinstance(change, Begun):
            current += 1
        assert change.block.index == current
        if isinstance(change, Grown):
            texts[current] += change.text
    assert texts == [text for _, _, text, _ in found]
    assert sum(isinstance(change, Ended) for change in changes) == len(found)


@pytest.mark.parametrize("parts", [[], [Content("")]])
def test_nothing_is_no_block(parts):
    assert read([part for part in parts if part.text])[0] == []
