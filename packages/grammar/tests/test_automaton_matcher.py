"""The token engine beside trying every token: masks, steering, forced text, rolling back."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import numpy as np
import pytest
from grammar_vocabularies import DOUBLE, END, HOLE, SPECIAL, byte_vocabulary, encode, toy_vocabulary

from phloem.grammar.automaton import Region
from phloem.grammar.dfa import Dfa
from phloem.grammar.dfa_automaton import DfaAutomaton
from phloem.grammar.matcher import AutomatonGrammar, fill_masks
from phloem.grammar.regex import parse
from phloem.grammar.vocabulary import Vocabulary

PATTERNS = [
    r"[a-z]+",
    r"(yes|no|maybe)!?",
    r"\d{3}-\d{4}",
    r'\{"name": "[^"\\\n]*"(, "age": [0-9]{1,3})?\}',
    r".*",
    r"(?s:.){2,9}",
    r"\w+( \w+)*[.?]",
    r"é|日本?|😀+",
    r"a{30}b*",
    r"th[a-z]{2,} [x-z]?",
]
VOCABULARIES = [byte_vocabulary, toy_vocabulary]


def grammar_of(pattern, vocabulary, **options):
    return AutomatonGrammar(vocabulary, DfaAutomaton(parse(pattern)), **options)


def mask_of(matcher, vocabulary, tokens_left=None):
    mask = np.full((3, vocabulary.words), -1, np.int32)
    matcher.fill_mask(mask, 1, tokens_left)
    assert (mask[[0, 2]] == -1).all()
    bits = np.unpackbits(mask[1].view(np.uint8), bitorder="little")
    return set(np.flatnonzero(bits).tolist())


def legal_by_trial(pattern, text, vocabulary):
    """The tokens after which the text is still the beginning of one that matches."""
    dfa = parse(pattern)
    legal = {
        id
        for id, token in enumerate(vocabulary.tokens)
        if token is not None and dfa.run(text + token) >= 0
    }
    return legal | set(vocabulary.stop_ids) if dfa.accepts(text) else legal


def random_walk(matcher, vocabulary, choose, most=12):
    """The text before each token, while a matcher takes random legal ones."""
    text = b""
    for _ in range(most):
        yield text
        legal = sorted(mask_of(matcher, vocabulary) - {END})
        if not legal:
            return
        token = choose.choice(legal)
        assert matcher.accept(token)
        text += vocabulary.tokens[token]


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_mask_holds_exactly_the_tokens_that_can_be_tried(pattern, vocabulary):
    vocabulary = vocabulary()
    grammar = grammar_of(pattern, vocabulary)
    choose = random.Random(1)
    for _ in range(6):
        matcher = grammar.matcher()
        for text in random_walk(matcher, vocabulary, choose):
            legal = legal_by_trial(pattern, text, vocabulary)
            assert mask_of(matcher, vocabulary) == legal
            for token in choose.sample(range(vocabulary.size), 40):
                taken = matcher.accept(token)
                assert taken == (token in legal)
                if taken:
                    matcher.rollback(1)
            assert matcher.is_complete == grammar.accepts(text)


def test_special_tokens_and_holes_are_never_legal_and_doubles_always_are():
    matcher = grammar_of(r"(?s:.*)", byte_vocabulary()).matcher()
    legal = mask_of(matcher, byte_vocabulary())
    assert {SPECIAL, HOLE}.isdisjoint(legal)
    assert {ord("a"), DOUBLE, END} <= legal
    assert not matcher.accept(SPECIAL)
    assert not matcher.accept(HOLE)
    assert not matcher.accept(10**6)
    assert not matcher.accept(-1)
    assert matcher.accept(DOUBLE)


def test_a_stop_token_ends_a_complete_text_and_only_that():
    matcher = grammar_of("ab?", byte_vocabulary()).matcher()
    assert not matcher.accept(END)
    assert matcher.accept(ord("a"))
    assert not matcher.is_terminated
    assert matcher.accept(END)
    assert matcher.is_terminated
    assert matcher.is_complete
    assert mask_of(matcher, byte_vocabulary()) == set()
    assert not matcher.accept(END)
    assert matcher.forced() == b""
    assert matcher.distance_to_end() == 0
    matcher.rollback(1)
    assert not matcher.is_terminated
    assert mask_of(matcher, byte_vocabulary()) == {ord("b"), END}
    assert matcher.accept(ord("b"))
    assert matcher.is_terminated
    assert mask_of(matcher, byte_vocabulary()) == {END}


def test_rolling_back_returns_to_the_state_before_and_a_fork_goes_its_own_way():
    vocabulary = toy_vocabulary()
    grammar = grammar_of(r"[a-z ]+", vocabulary)
    matcher = grammar.matcher()
    for token in encode(vocabulary, b"the cat and"):
        assert matcher.accept(token)
    fork = matcher.fork()
    assert fork.accept(ord("x"))
    fork.rollback(len(encode(vocabulary, b"the cat and")) + 1)
    assert not fork.is_complete
    assert matcher.is_complete
    with pytest.raises(ValueError, match="cannot take 1 tokens back: 0 were accepted"):
        fork.rollback(1)
    with pytest.raises(ValueError, match="cannot take -1 tokens back"):
        fork.rollback(-1)
    matcher.rollback(0)
    assert matcher.is_complete


@pytest.mark.parametrize(
    ("pattern", "before", "forced"),
    [
        ("(yes|no)", "", ""),
        ("(yes|no)", "y", "es"),
        ('\\{"name": "x*"\\}', "", '{"name": "'),
        ("abc?", "", "ab"),
        ("abc?", "ab", ""),
        ("abc", "abc", ""),
        ("(ab|cd)ef(g|h)", "c", "def"),
    ],
)
def test_forced_text_goes_as_far_as_there_is_no_choice(pattern, before, forced):
    matcher = grammar_of(pattern, byte_vocabulary()).matcher()
    for byte in before.encode():
        assert matcher.accept(byte)
    assert matcher.forced() == forced.encode()


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_steering_ends_every_text_in_time(pattern, vocabulary, monkeypatch):
    # Sweeps begin anywhere in the tree, even where no token is legal.
    monkeypatch.setattr("phloem.grammar.token_walks._WORTH_A_SWEEP", 0)
    vocabulary = vocabulary()
    grammar = grammar_of(pattern, vocabulary)
    choose = random.Random(2)
    for _ in range(20):
        matcher = grammar.matcher()
        shortest = matcher.distance_to_end()
        for left in range(shortest + choose.randint(0, 5), 0, -1):
            legal = mask_of(matcher, vocabulary, left)
            assert legal
            assert legal <= mask_of(matcher, vocabulary)
            assert matcher.accept(choose.choice(sorted(legal)))
            assert matcher.distance_to_end() <= left - 1
            if matcher.is_terminated:
                break
        assert matcher.is_complete


def test_steering_leaves_out_only_tokens_that_would_be_too_late():
    vocabulary = byte_vocabulary()
    matcher = grammar_of("[ab]*(c|dee)", vocabulary).matcher()
    assert mask_of(matcher, vocabulary, 1) == {ord("c")}
    assert mask_of(matcher, vocabulary, 2) == {*b"abc", DOUBLE}
    assert mask_of(matcher, vocabulary, 3) == {*b"abcd", DOUBLE}
    assert mask_of(matcher, vocabulary, 0) == {ord("c")}, "too late: the shortest way is left"
    assert matcher.distance_to_end() == 1


def test_distances_count_the_tokens_of_the_vocabulary():
    vocabulary = toy_vocabulary()
    matcher = grammar_of("the cat and the dog", vocabulary).matcher()
    assert 0 < matcher.distance_to_end() <= len(encode(vocabulary, b"the cat and the dog"))
    assert grammar_of("the cat", byte_vocabulary()).matcher().distance_to_end() == 7


def test_a_batch_of_masks_equals_those_one_by_one():
    vocabulary = toy_vocabulary()
    grammars = [grammar_of(pattern, vocabulary) for pattern in (r"[a-z]+!", r"\d+x")]
    for choice in ([0] * 6, [0, 1] * 3):
        matchers = [grammars[which].matcher() for which in choice]
        for matcher in matchers[::2]:
            assert matcher.accept(ord("a"))
        for rows in (range(6), [0, 1, 2, 3, 4, 5], [5, 3, 1, 0, 2, 4], [1, 2, 3, 4, 5, 6]):
            for left in (None, [None, 1, 2, 3, 4, 5], [9] * 6, [1] * 6):
                together = np.full((7, vocabulary.words), -1, np.int32)
                single = together.copy()
                fill_masks(matchers, together, rows, left)
                for index, row in enumerate(rows):
                    tokens_left = None if left is None else left[index]
                    matchers[index].fill_mask(single, row, tokens_left)
                assert (together == single).all()
    fill_masks([], np.zeros((1, vocabulary.words), np.int32), [])


def test_a_mask_wider_than_the_vocabulary_is_cleared_beyond_it():
    vocabulary = byte_vocabulary()
    grammar = grammar_of(".*", vocabulary)
    for fill in (
        lambda mask: grammar.matcher().fill_mask(mask, 0),
        lambda mask: fill_masks([grammar.matcher()], mask, [0]),
    ):
        mask = np.full((1, vocabulary.words + 2), -1, np.int32)
        fill(mask)
        assert (mask[0, vocabulary.words :] == 0).all()
        assert mask[0, : vocabulary.words].any()


def test_caches_that_are_full_start_over_and_matchers_go_on():
    vocabulary = toy_vocabulary()
    pattern = "(a[a-z]b|[c-h][0-9]x|[a-p] )*"
    small, large = (grammar_of(pattern, vocabulary, cache_bytes=size) for size in (512, 1 << 20))
    choose = random.Random(3)
    pairs = [(small.matcher(), large.matcher()) for _ in range(4)]
    for _ in range(60):
        for one, other in pairs:
            legal = mask_of(other, vocabulary)
            assert mask_of(one, vocabulary) == legal
            token = choose.choice(sorted(legal - {END}))
            assert one.accept(token)
            assert other.accept(token)
        batch = np.zeros((4, vocabulary.words), np.int32)
        expected = batch.copy()
        fill_masks([one for one, _ in pairs], batch, range(4))
        fill_masks([other for _, other in pairs], expected, range(4))
        assert (batch == expected).all()
    for one, _ in pairs:
        one.rollback(60)
        assert mask_of(one, vocabulary) == mask_of(small.matcher(), vocabulary)


# An automaton of another kind: quoted strings, nested in brackets, with free text around.

BODY = Dfa.any_text().difference(parse(r'(?s:.*["\\].*)'))


@dataclass(frozen=True)
class Nested:
    """Brackets to any depth around strings of `BODY` with `\\"`; `state` is None outside of one."""

    depth: int
    state: int | None = None
    escaped: bool = False

    @property
    def complete(self):
        return self.depth == 0 and self.state is None

    def step(self, byte):
        if self.escaped:
            return Nested(self.depth, 0) if byte in b'"\\' else None
        if self.state is not None:
            state = BODY.step(self.state, byte)
            if state >= 0:
                return Nested(self.depth, state)
            if self.state != 0 or byte not in b'"\\':
                return None
            return Nested(self.depth, 0, True) if byte == ord("\\") else Nested(self.depth)
        if byte == ord("["):
            return Nested(self.depth + 1)
        if byte == ord("]"):
            return Nested(self.depth - 1) if self.depth else None
        return Nested(self.depth, 0) if byte == ord('"') else None

    def first_bytes(self):
        return [byte for byte in range(256) if self.step(byte) is not None]

    @property
    def has_choice(self):
        return False

    def moves(self, among):
        return [(byte, self.step(byte)) for byte in self.first_bytes() if byte in among]

    def run(self):
        return None

    def region(self):
        if self.state is None or self.escaped:
            return None
        return Region(BODY, self.state, lambda state: Nested(self.depth, state))

    def part(self):
        return None

    def distance(self, cost):
        rest = b'"' if self.state is not None else b""
        if self.state is not None:
            rest = (b'"' if self.escaped else BODY.shortest(self.state)) + rest
        return cost(rest + b"]" * self.depth)


@dataclass(frozen=True)
class InString:
    """The part of a `Nested` that is a string: the same at every depth."""

    place: Nested
    is_shared: bool
    others = b""

    @property
    def key(self):
        return ("string", self.place.state, self.place.escaped)

    def holds(self, texts):
        return True

    def cursor(self):
        return replace(self.place, depth=0)

    def mark(self, cursor):
        return "closed" if cursor.complete else None

    def outer(self, mark):
        assert mark == "closed"
        return type(self.place)(self.place.depth)


class InParts(Nested):
    """The same, told by its parts."""

    is_shared = False

    def step(self, byte):
        after = Nested.step(self, byte)
        return after and type(self)(after.depth, after.state, after.escaped)

    def region(self):
        region = Nested.region(self)
        return region and region._replace(cursor=lambda state: type(self)(self.depth, state))

    def part(self):
        return None if self.state is None else InString(self, self.is_shared)


class InSharedParts(InParts):
    is_shared = True


class NestedAutomaton:
    def __init__(self, kind=Nested):
        self.start = kind(0)

    def farthest(self, cost, missing):
        return None

    def serialize(self):
        return b""


@pytest.mark.parametrize("kind", [Nested, InParts, InSharedParts])
@pytest.mark.parametrize("from_size", [0, 256])
def test_tokens_that_leave_a_region_are_followed_beyond_it(from_size, kind, monkeypatch):
    monkeypatch.setattr("phloem.grammar.token_walks._WORTH_A_SWEEP", from_size)
    monkeypatch.setattr("phloem.grammar.token_walks._WORTH_A_TEMPLATE", from_size)
    vocabulary = toy_vocabulary()
    grammar = AutomatonGrammar(vocabulary, NestedAutomaton(kind))
    choose = random.Random(4)
    for _ in range(12):
        matcher = grammar.matcher()
        cursor = Nested(0)
        for _ in range(15):
            legal = set()
            for id, token in enumerate(vocabulary.tokens):
                after = cursor
                for byte in token or b"":
                    after = after and after.step(byte)
                if token is not None and after is not None:
                    legal.add(id)
            assert mask_of(matcher, vocabulary) - {END} == legal
            assert (END in mask_of(matcher, vocabulary)) == cursor.complete
            left = matcher.distance_to_end() + choose.randint(0, 2)
            steered = mask_of(matcher, vocabulary, left)
            for token in choose.sample(sorted(steered - {END}), min(len(steered - {END}), 5)):
                assert matcher.accept(token)
                assert left == 0 or matcher.distance_to_end() <= left - 1
                matcher.rollback(1)
            token = choose.choice(sorted(legal))
            assert matcher.accept(token)
            for byte in vocabulary.tokens[token]:
                cursor = cursor.step(byte)


def test_an_automaton_that_tells_no_distances_is_not_steered():
    class Untold(Nested):
        def step(self, byte):
            step = Nested.step(self, byte)
            return step and Untold(step.depth, step.state, step.escaped)

        def region(self):
            return None

        def distance(self, cost):
            return None

    vocabulary = byte_vocabulary()
    matcher = AutomatonGrammar(vocabulary, NestedAutomaton(Untold)).matcher()
    assert matcher.distance_to_end() is None
    assert mask_of(matcher, vocabulary, 1) == mask_of(matcher, vocabulary)


def test_a_vocabulary_of_nothing_allows_nothing():
    vocabulary = Vocabulary([None, None], [1])
    matcher = grammar_of("a", vocabulary).matcher()
    for tokens_left in (None, 0, 5):
        assert mask_of(matcher, vocabulary, tokens_left) == set()
    assert matcher.distance_to_end() >= 1 << 30
