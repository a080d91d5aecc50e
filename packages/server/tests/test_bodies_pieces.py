"""What is taken apart into small pieces and put together again is the same."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phloem.server.bodies.pieces import PART, PIECE, MadeConstraint, taken_apart
from phloem.server.bodies.reader import Whole
from phloem.server.constraints import FIELDS, constraint_of

SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False)
)
TEXTS = st.builds(lambda text, n: text * n, st.text(), st.sampled_from([1, 1, 3 * PART]))


def many(values):
    return st.builds(lambda given, n: given * n, st.lists(values), st.sampled_from([1, 1, PIECE]))


KEYS = st.builds(lambda text, n: text * n, st.text(max_size=2), st.sampled_from([1, 1, PIECE + 1]))
VALUES = st.recursive(
    SCALARS | TEXTS | many(SCALARS),
    lambda inner: st.lists(inner) | st.dictionaries(KEYS, inner),
    max_leaves=8,
)


def put_together(pieces):
    whole = Whole()
    for piece in pieces:
        # A character is six bytes at most, and an item a few marks.
        assert len(piece) <= 6 * PART + len('+""')
        whole.add(piece)
    return whole.content


@settings(max_examples=30, deadline=None)
@given(st.dictionaries(KEYS, VALUES))
def test_what_is_put_together_is_what_was_taken_apart(content):
    content = msgspec.json.decode(msgspec.json.encode(content))
    again = put_together(taken_apart(content))
    assert again == content
    assert repr(again) == repr(content)  # in order, and with the same types of numbers


@pytest.mark.parametrize("length", [PIECE // 2 - 1, PIECE // 2, PIECE // 2 + 1, PIECE * 3])
@pytest.mark.parametrize("entry", [7, "x", [], {"a": [None]}, "y" * (PIECE - 2), "z" * PIECE])
def test_long_lists_are_many_pieces(length, entry):
    if isinstance(entry, str) and len(entry) > 1:
        length = 5
    content = {"a": [entry] * length, "b": {"within": [[entry]] * length}, "c": "behind"}
    pieces = list(taken_apart(content))
    assert len(pieces) > 5
    assert put_together(pieces) == content


def test_a_constraint_is_one_again():
    asked = constraint_of({"choices": ["a" * PIECE, "b"]}, {"steering": True})
    made = MadeConstraint(msgspec.to_builtins(asked))
    content = put_together(taken_apart({"prompt": "x", FIELDS[-2]: made, "sampling": {"a": made}}))
    assert content == {"prompt": "x", FIELDS[-2]: asked, "sampling": {"a": asked}}
