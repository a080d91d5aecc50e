"""The algebra of `Dfa` beside sets of short texts, and its limits."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phloem.grammar.dfa import Budget, Dfa
from phloem.grammar.dfa.table import Table
from phloem.grammar.errors import ConstraintTooComplex, GrammarError

LONGEST = 5
TEXTS = [bytes(text) for n in range(LONGEST + 1) for text in product(b"ab", repeat=n)]


def short_texts(dfa):
    return {text for text in TEXTS if dfa.accepts(text)}


def joined(left, right):
    return {one + two for one in left for two in right if len(one + two) <= LONGEST}


def repeated(texts, fewest, most):
    found, current = set(), {b""}
    for count in range((most if most is not None else LONGEST + fewest) + 1):
        if count >= fewest:
            found |= current
        current = joined(current, texts)
    return found


def transition_tables():
    def table(states):
        row = st.lists(st.integers(-1, states - 1), min_size=2, max_size=2)
        rows = st.lists(row, min_size=states, max_size=states)
        return st.tuples(rows, st.lists(st.booleans(), min_size=states, max_size=states))

    return st.integers(1, 5).flatmap(table)


@st.composite
def dfas(draw):
    rows, accepting = draw(transition_tables())
    edges = [
        (source, byte, byte, target)
        for source, row in enumerate(rows)
        for byte, target in zip(b"ab", row, strict=True)
        if target >= 0
    ]
    return Dfa.of_ranges(edges, accepting)


@settings(deadline=None, max_examples=150)
@given(dfas(), dfas())
def test_operations_on_two_languages_are_those_on_their_sets(left, right):
    one, two = short_texts(left), short_texts(right)
    assert short_texts(left.union(right)) == one | two
    assert short_texts(left.intersect(right)) == one & two
    assert short_texts(left.difference(right)) == one - two
    assert short_texts(left.concat(right)) == joined(one, two)
    assert left.meets(right) == (not left.intersect(right).is_empty)


@settings(deadline=None, max_examples=100)
@given(dfas(), dfas())
def test_large_languages_are_combined_to_the_same_as_small_ones(left, right):
    small = [left.union(right), left.intersect(right), left.difference(right), left.meets(right)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("phloem.grammar.dfa.core._FEW_PAIRS", -1)
        large = [left.union(right), left.intersect(right), left.difference(right)]
        assert small == [*large, left.meets(right)]


@settings(deadline=None, max_examples=100)
@given(dfas(), st.integers(0, 3), st.none() | st.integers(0, 3))
def test_repetitions_are_those_of_the_set(dfa, fewest, more):
    most = None if more is None else fewest + more
    assert short_texts(dfa.repeat(fewest, most)) == repeated(short_texts(dfa), fewest, most)


@settings(deadline=None, max_examples=100)
@given(dfas(), dfas())
def test_languages_are_equal_exactly_if_neither_has_a_text_of_its_own(left, right):
    differ = not (left.difference(right).is_empty and right.difference(left).is_empty)
    assert (left == right) == (not differ)
    if not differ:
        assert hash(left) == hash(right)
        assert (left.table.next == right.table.next).all()


@settings(deadline=None, max_examples=60)
@given(dfas())
def test_a_complement_is_all_other_texts_and_undoes_itself(dfa):
    assert short_texts(dfa.complement()) == set(TEXTS) - short_texts(dfa)
    assert dfa.complement().complement() == dfa


@settings(deadline=None, max_examples=60)
@given(dfas())
def test_every_state_is_live_and_tells_how_near_the_end_is(dfa):
    for state in range(dfa.states):
        rest = dfa.shortest(state)
        assert len(rest) == dfa.byte_distances[state]
        assert dfa.accepting[dfa.run(rest, state)]
        if rest:
            assert dfa.shortest(dfa.step(state, rest[0])) == rest[1:]
        shorter = (text for text in TEXTS if len(text) < len(rest))
        assert not any((at := dfa.run(text, state)) >= 0 and dfa.accepting[at] for text in shorter)


@settings(deadline=None, max_examples=60)
@given(dfas())
def test_a_language_is_finite_if_no_text_is_longer_than_its_states(dfa):
    loops = any(dfa.accepts(bytes(text)) for text in product(b"ab", repeat=dfa.states))
    longer = any(
        dfa.accepts(bytes(text))
        for length in range(dfa.states, 2 * dfa.states)
        for text in product(b"ab", repeat=length)
    )
    assert dfa.is_finite == (not (loops or longer))
    if dfa.is_finite:
        assert dfa.longest == max(map(len, short_texts(dfa)), default=0)


@settings(deadline=None, max_examples=60)
@given(dfas())
def test_a_serialized_language_comes_back_equal(dfa):
    assert Dfa.deserialize(dfa.serialize()) == dfa


def test_damaged_bytes_are_refused():
    data = Dfa.of_literals([b"one", b"two"]).serialize()
    for damaged in (b"", b"x", data[:-5], data[:20] + b"\0" + data[21:]):
        with pytest.raises(GrammarError, match="compile the constraint again"):
            Dfa.deserialize(damaged)


def test_the_empty_language_has_no_state_and_survives_all_operations():
    empty, one = Dfa.empty(), Dfa.literal(b"a")
    assert empty.is_empty
    assert empty.is_finite
    assert empty.states == 0
    assert not empty.accepts(b"")
    assert empty.union(one) == one == one.union(empty) == one.difference(empty)
    assert empty == one.intersect(empty) == one.concat(empty) == empty.difference(one)
    assert empty.repeat(0, None) == Dfa.literal(b"")
    assert empty.repeat(1, 2) == empty
    assert empty.complement() == Dfa.any_text()
    assert Dfa.deserialize(empty.serialize()) == empty


def test_any_text_is_what_decodes_as_utf8():
    dfa = Dfa.any_text()
    generator = np.random.default_rng(0)
    starts = [0xC0, 0xC2, 0xDF, 0xE0, 0xED, 0xEF, 0xF0, 0xF4, 0xF5, 0xFF, 0x41]
    followers = [0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0]
    for _ in range(4000):
        text = bytes(
            [generator.choice(starts), *generator.choice(followers, generator.integers(4))]
        )
        try:
            text.decode()
            legal = True
        except UnicodeDecodeError:
            legal = False
        assert dfa.accepts(text) == legal, text


def test_lengths_count_characters_and_not_bytes():
    dfa = Dfa.of_lengths(2, 3)
    assert [dfa.accepts(text.encode()) for text in ("é", "日a", "😀😀😀", "aaaa")] == [
        *(False, True, True, False)
    ]
    assert Dfa.of_lengths(1, None).accepts("日".encode() * 50)
    assert not Dfa.of_lengths(1, None).accepts(b"")
    assert Dfa.of_lengths(3, 2).is_empty
    assert Dfa.of_lengths(0, 0) == Dfa.literal(b"")


def test_distances_in_characters_do_not_count_the_rest_of_one():
    dfa = Dfa.literal("é日".encode())
    along = [dfa.run("é日".encode()[:length]) for length in range(6)]
    assert dfa.char_distances[along].tolist() == [2, 1, 1, 0, 0, 0]
    assert dfa.byte_distances[along].tolist() == [5, 4, 3, 2, 1, 0]


def test_ten_thousand_literals_become_one_automaton():
    words = [f"word-{number * 7919 % 100003}".encode() for number in range(10_000)]
    dfa = Dfa.of_literals(words)
    assert all(dfa.accepts(word) for word in words)
    assert not dfa.accepts(b"word-x")
    assert not dfa.accepts(b"word-")
    assert dfa.states < 20_000


@settings(deadline=None, max_examples=150)
@given(st.lists(st.lists(st.sampled_from(b"\0ab\xff"), max_size=6).map(bytes), max_size=12))
def test_literals_are_the_minimal_automaton_of_their_prefix_tree(words):
    prefixes = sorted({word[:end] for word in [*words, b""] for end in range(len(word) + 1)})
    number = {prefix: place for place, prefix in enumerate(prefixes)}
    edges = [(number[text[:-1]], text[-1], text[-1], number[text]) for text in prefixes[1:]]
    dfa, tree = Dfa.of_literals(words), Dfa.of_ranges(edges, [text in words for text in prefixes])
    assert dfa == tree
    assert dfa.serialize() == tree.serialize()


def test_all_bytes_may_be_literals():
    dfa = Dfa.of_literals([bytes([byte]) for byte in range(256)] + [b"ab"])
    assert dfa.table.next.shape == (3, 3)
    assert [text for text in (b"", b"a", b"b", b"ab", b"ba") if dfa.accepts(text)] == [
        *(b"a", b"b", b"ab")
    ]


def test_bytes_can_be_left_out_of_a_language():
    dfa = Dfa.of_literals([b"ab", b"b", b"cc"])
    assert short_texts(dfa.without_bytes(b"a")) == {b"b"}
    assert not dfa.lives_without(b"b")
    assert dfa.lives_without(b"a")


def test_a_budget_of_states_or_time_stops_every_operation():
    few, late = Budget(max_states=20), Budget(deadline=0.0)
    one = Dfa.of_lengths(2, 4)
    for budget in (few, late):
        for work in (
            lambda b: Dfa.of_literals([bytes([n]) * 20 for n in range(1, 50)], b),
            lambda b: one.concat(one, b),
            lambda b: one.repeat(2, 50, b),
            lambda b: one.intersect(Dfa.any_text(), b),
            lambda b: Dfa.of_lengths(1, 100, b),
        ):
            with pytest.raises(ConstraintTooComplex):
                work(budget)


def test_bytes_that_no_state_tells_apart_share_a_class():
    dfa = Dfa.of_ranges([(0, ord("a"), ord("z"), 1), (1, ord("0"), ord("9"), 1)], [False, True])
    assert dfa.table.next.shape == (2, 3)
    assert dfa.transitions.shape == (2, 256)
    assert dfa.first_bytes(1) == b"0123456789"


@pytest.mark.parametrize("seed", range(120))
def test_small_automata_are_minimized_to_the_same_as_large_ones(seed, monkeypatch):
    random = np.random.default_rng(seed)
    states, classes = int(random.integers(1, 12)), int(random.integers(1, 5))
    targets = random.integers(-1, states, (states, classes))
    targets[random.random((states, classes)) < seed % 40 / 80] = -1
    if seed % 3 == 0:  # no cycles but loops
        targets = np.where(targets >= 0, np.maximum(targets, np.arange(states)[:, None]), -1)
    by_byte = np.append(np.arange(classes), random.integers(0, classes, 256 - classes))
    table = Table(targets.astype(np.int32), random.random(states) < 0.3, by_byte.astype(np.uint8))
    small = Dfa(table)
    told = small.byte_distances.tolist(), small.longest
    monkeypatch.setattr("phloem.grammar.dfa.table._FEW_EDGES", -1)
    monkeypatch.setattr("phloem.grammar.dfa.minimize._SMALL", -1)
    large = Dfa(table)
    assert small == large
    assert np.array_equal(small.table.next, large.table.next)
    texts = [random.integers(0, classes, length).astype(np.uint8).tobytes() for length in range(9)]
    for text in texts:
        state = 0
        for byte in text:
            state = targets[state, byte] if state >= 0 else -1
        assert small.accepts(text) == (state >= 0 and bool(table.accepting[state]))
    assert told == (large.byte_distances.tolist(), large.longest)
