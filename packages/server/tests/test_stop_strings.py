from __future__ import annotations

import itertools

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from phloem.scheduler import StopChecker
from phloem.server.stop_strings import StopTrimmer, TextStopChecker

LETTERS = st.text("abX", max_size=12)
STOPS = st.lists(st.text("abX", min_size=1, max_size=4), max_size=4)


def first_match(text: str, stops: list[str]) -> tuple[int, str] | None:
    """Where the output ends and what ended it: the earliest end, then the longest."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            matched = max(ending, key=len)
            return end - len(matched), matched
    return None


def tokens_until_stop(pieces: list[str], stops: list[str]) -> tuple[list[str], str | None]:
    """The pieces that a scheduler would let come out, and the string that ended them."""
    for n in range(1, len(pieces) + 1):
        found = first_match("".join(pieces[:n]), stops)
        if found:
            return pieces[:n], found[1]
    return pieces, None


def trimmed(pieces: list[str], stops: list[str], matched: str | None) -> list[str]:
    trimmer = StopTrimmer(stops)
    return [*(trimmer.push(piece) for piece in pieces), trimmer.finish(matched)]


def letter_ids(tokenizer, text: str) -> list[int]:
    return [i for letter in text for i in tokenizer.encode(letter)]


def test_the_checker_fits_the_port_of_the_scheduler(byte_level):
    checker: StopChecker = TextStopChecker(byte_level)
    assert checker.matcher(("a",)).push(byte_level.encode("a")[0]) == "a"


def test_nothing_of_a_stop_string_that_spans_tokens_is_sent():
    pieces = ["abc", "DEF", "G", "HI", "J"]
    assert trimmed(pieces, ["DEFGHIJ"], "DEFGHIJ") == ["abc", "", "", "", "", ""]


@pytest.mark.parametrize("pieces", [["?", "\n"], ["?\n"]])
def test_text_before_a_stop_in_the_same_token_is_kept(pieces):
    assert "".join(trimmed(pieces, ["\n"], "\n")) == "?"


def test_held_text_that_turns_out_not_to_stop_is_sent_once():
    assert trimmed([" Alice", "!"], ["\n", "Alice:"], None) == [" ", "Alice!", ""]


def test_only_a_real_prefix_of_a_stop_string_is_held_back():
    assert trimmed(["</think>"], ["a very long stop string"], None) == ["</think>", ""]


def test_a_stop_that_begins_and_ends_inside_tokens_is_cut():
    assert "".join(trimmed(["one tw", "o three"], ["two"], "two")) == "one "


def test_of_stops_that_end_together_the_longest_is_cut(byte_level):
    matcher = TextStopChecker(byte_level).matcher(("b", "ab"))
    assert [matcher.push(i) for i in letter_ids(byte_level, "xab")] == [None, None, "ab"]
    assert "".join(trimmed(["xab"], ["b", "ab"], "ab")) == "x"


def test_of_several_matches_in_a_token_the_one_that_ends_first_counts():
    assert "".join(trimmed(["aXbX"], ["X"], "X")) == "a"


def test_a_match_that_the_scheduler_lets_pass_is_sent():
    """Below `min_new_tokens` a stop string does not end the output."""
    assert trimmed(["aX", "b", "cXd"], ["X"], "X") == ["a", "Xb", "c", ""]
    assert trimmed(["aX"], ["X"], None) == ["a", "X"]


def test_the_matcher_sees_a_special_token_as_its_text(byte_level):
    matcher = TextStopChecker(byte_level).matcher(("!<|im_end|>",))
    ids = [*byte_level.encode("!"), byte_level.eos_token_id]
    assert [matcher.push(i) for i in ids] == [None, "!<|im_end|>"]


def test_the_matcher_finds_a_character_split_over_tokens(byte_level):
    matcher = TextStopChecker(byte_level).matcher(("世",))
    ids = byte_level.encode("世")
    assert len(ids) == 3
    assert [matcher.push(i) for i in ids] == [None, None, "世"]


@given(text=LETTERS, stops=STOPS)
@example(text="aab", stops=["aaX", "ab"])
def test_the_matcher_stops_where_a_search_of_the_whole_text_does(byte_level, text, stops):
    matcher = TextStopChecker(byte_level).matcher(tuple(stops))
    found = first_match(text, stops)
    for n, token in enumerate(letter_ids(byte_level, text), 1):
        matched = matcher.push(token)
        if matched:
            assert found == (n - len(matched), matched)
            return
    assert found is None


@given(text=LETTERS, stops=STOPS, cuts=st.lists(st.integers(0, 12)))
def test_streamed_text_is_the_text_before_the_stop_whatever_the_split(text, stops, cuts):
    bounds = itertools.pairwise(sorted({0, *(min(cut, len(text)) for cut in cuts), len(text)}))
    pieces, matched = tokens_until_stop([text[begin:end] for begin, end in bounds], stops)
    parts = trimmed(pieces, stops, matched)
    whole = "".join(pieces)
    found = first_match(whole, stops)
    assert "".join(parts) == (whole if found is None else whole[: found[0]])


@given(pieces=st.lists(st.text("abX", max_size=3)), stops=STOPS)
def test_no_more_is_held_back_than_the_longest_possible_beginning_of_a_stop(pieces, stops):
    pieces, _ = tokens_until_stop(pieces, stops)
    trimmer = StopTrimmer(stops)
    text, sent = "", ""
    for piece in pieces[:-1]:
        text += piece
        sent += trimmer.push(piece)
        begins = {stop[:n] for stop in stops for n in range(1, len(stop))}
        held = max((len(b) for b in begins if text.endswith(b)), default=0)
        assert sent == text[: len(text) - held]


def test_the_sequences_of_a_request_share_one_automaton_and_no_state():
    first, second = StopTrimmer(["abX"]), StopTrimmer(["abX"])
    assert first._state is second._state
    assert (first.push("ab"), second.push("b"), second.push("aX")) == ("", "b", "aX")
    assert first.push("X") + first.finish("abX") == ""
