"""Sets of strings: what is left when some are taken away, and how few are listed."""

from hypothesis import given, settings
from hypothesis import strategies as st

from phloem.grammar.dfa import Dfa
from phloem.grammar.json_schema.strings import any_except, texts_of

texts = st.lists(st.text("abé😀\x7f\u0800", max_size=4), max_size=6)


@settings(max_examples=60, deadline=None)
@given(texts)
def test_all_strings_but_some_are_the_complement_of_those(some):
    assert any_except(tuple(some)) == Dfa.any_text().difference(
        Dfa.of_literals(text.encode() for text in some)
    )


@settings(max_examples=60, deadline=None)
@given(texts)
def test_a_finite_language_is_listed_shortest_first_or_not_at_all(some):
    wanted = sorted({text.encode() for text in some}, key=lambda text: (len(text), text))
    dfa = Dfa.of_literals(wanted)
    assert texts_of(dfa, 6) == wanted
    assert texts_of(dfa, max(len(wanted) - 1, 0)) == (None if wanted else [])
    assert texts_of(Dfa.any_text(), 6) is None
