"""Which tokens forced text gets: those that the tokenizer makes of it."""

from __future__ import annotations

import pytest
from constraint_support import IDS, MergingTokenizer, WordsMatcher, spell

from phloem.scheduler.forced_text import ForcedText


def ids(*spellings):
    return [IDS[s.encode()] for s in spellings]


def settled(token, words, **options):
    matcher = WordsMatcher(words)
    (token,) = ids(token)
    assert matcher.accept(token)
    fixed = ForcedText(MergingTokenizer()).settle(matcher, token, **options)
    assert matcher.texts[-1] == spell(fixed).encode(), "the matcher has seen what is fixed"
    return [spell([token]) for token in fixed]


def test_forced_text_is_cut_together_with_the_token_before_it():
    assert settled("f", ["fadef", "fadeb", "bb"]) == ["f", "a", "d"]
    assert settled("a", ["abbe", "abba", "f"]) == ["ab"]


def test_the_last_token_is_left_to_the_model_where_text_may_follow():
    # "ab" could still become "abc".
    assert settled("f", ["fdab", "fdabc", "fdabcde"]) == ["f", "d"]
    assert settled("f", ["fdabc", "fdabb"]) == ["f", "d"]


def test_the_last_token_is_fixed_where_nothing_may_follow():
    assert settled("f", ["fdab"]) == ["f", "d", "ab"]
    assert settled("a", ["abcde", "f"]) == ["abcde"]


def test_a_lone_token_takes_the_place_of_the_sampled_one():
    assert settled("c", ["cdf", "cdcf"]) == ["cd"]
    assert settled("c", ["cdf", "cdcf"], may_replace=False) == ["c"]


def test_a_sampled_token_that_stays_is_followed_by_forced_ones_in_any_case():
    assert settled("f", ["fdab"], may_replace=False) == ["f", "d", "ab"]


def test_nothing_is_fixed_where_there_is_a_choice_or_the_word_may_end():
    assert settled("a", ["ab", "ac"]) == ["a"]
    assert settled("a", ["a", "abcde"]) == ["a"]


def test_tokens_are_fixed_only_if_the_text_can_be_completed_with_them():
    # The tokenizer needs two more for what one could spell.
    class Wasteful(MergingTokenizer):
        def encode(self, text):
            return [IDS[bytes([byte])] for byte in text]

    def fixed(left):
        matcher = WordsMatcher(["fabcde"])
        assert matcher.accept(IDS[b"f"])
        return ForcedText(Wasteful()).settle(matcher, IDS[b"f"], tokens_left=left)

    assert fixed(6) == ids("f", "a", "b", "c", "d", "e")
    assert fixed(5) == ids("f")


def test_the_beginning_is_fixed_too_but_for_its_last_token():
    forced = ForcedText(MergingTokenizer())
    matcher = WordsMatcher(["dabf", "dabe"])
    assert forced.begin(matcher) == ids("d")
    assert matcher.texts[-1] == b"d"
    matcher = WordsMatcher(["ab", "abc"])
    assert forced.begin(matcher) == []
    assert matcher.texts == [b""]
    assert forced.begin(WordsMatcher(["abcde"])) == ids("abcde")
    assert forced.begin(WordsMatcher(["dabf"]), tokens_left=1) == []


@pytest.mark.parametrize("cut", [None, [], ids("a"), ids("ab", "b"), [0], [99]])
def test_a_tokenizer_that_does_not_spell_the_text_fixes_nothing(cut):
    class Odd(MergingTokenizer):
        def encode(self, text):
            return cut

    matcher = WordsMatcher(["abc"])
    assert ForcedText(Odd()).begin(matcher) == []
    assert matcher.accept(IDS[b"a"])
    assert ForcedText(Odd()).settle(matcher, IDS[b"a"]) == ids("a")
    assert matcher.texts[-1] == b"a"


def test_a_token_that_the_matcher_does_not_take_is_not_fixed():
    """Matchers may have rules about tokens beyond what these spell."""

    class Picky(WordsMatcher):
        def after(self, text, token):
            return False if token in ids("d", "abc") else super().after(text, token)

    matcher = Picky(["fdab"])
    assert matcher.accept(IDS[b"f"])
    assert ForcedText(MergingTokenizer()).settle(matcher, IDS[b"f"]) == ids("f")
    matcher = Picky(["abcf"])
    assert matcher.accept(IDS[b"a"])
    assert ForcedText(MergingTokenizer()).settle(matcher, IDS[b"a"]) == ids("a")
    assert matcher.texts == [b"", b"a"]


def test_a_text_is_cut_once():
    tokenizer = MergingTokenizer()
    forced = ForcedText(tokenizer)
    for _ in range(5):
        forced.begin(WordsMatcher(["dabf"]))
    assert tokenizer.texts == [b"dabf"]
