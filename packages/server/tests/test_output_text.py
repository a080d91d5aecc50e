from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phloem.server.detokenizer import decode_all
from phloem.server.output_text import OutputText
from phloem.server.stop_strings import TextStopChecker


def run_to_stop(tokenizer, ids, stops) -> tuple[list[int], str | None]:
    """The ids that a scheduler would let come out, and the stop string that ended them."""
    matcher = TextStopChecker(tokenizer).matcher(tuple(stops))
    for n, token in enumerate(ids, 1):
        matched = matcher.push(token)
        if matched:
            return ids[:n], matched
    return ids, None


def whole(tokenizer, ids, stops=(), matched=None, **options) -> str:
    return OutputText(tokenizer, stops, **options).finish(ids, matched)


def test_a_special_token_that_is_a_stop_string_ends_the_text_before_it(byte_level):
    ids = [*byte_level.encode("hi <"), byte_level.eos_token_id]
    ids, matched = run_to_stop(byte_level, ids, ["<|im_end|>"])
    assert matched == "<|im_end|>"
    assert whole(byte_level, ids, ["<|im_end|>"], matched) == "hi <"


def test_a_stop_string_that_runs_into_a_special_token_is_cut_whole(byte_level):
    stops = ["bye<|im"]
    ids = [*byte_level.encode("good bye"), byte_level.eos_token_id]
    ids, matched = run_to_stop(byte_level, ids, stops)
    assert whole(byte_level, ids, stops, matched) == "good "


def test_skipped_special_tokens_leave_the_text_around_them(byte_level):
    ids = [*byte_level.encode("a"), byte_level.eos_token_id, *byte_level.encode("b")]
    assert whole(byte_level, ids, ["<|im_end|>c"]) == "ab"
    assert whole(byte_level, ids, skip_special_tokens=False) == "a<|im_end|>b"


def test_a_special_token_that_is_partly_held_back_stays_hidden(byte_level):
    ids = [*byte_level.encode("a"), byte_level.eos_token_id, *byte_level.encode("b")]
    output = OutputText(byte_level, ["|>c", "d"])
    assert [output.push([i]) for i in ids] == ["a", "", "b"]
    assert output.finish() == ""


def test_a_stop_token_is_not_shown(byte_level):
    ids = byte_level.encode("a!")
    assert whole(byte_level, ids, matched=ids[-1]) == "a"


def test_what_ended_a_text_may_be_kept(byte_level):
    ids = byte_level.encode("a!")
    assert whole(byte_level, ids, matched=ids[-1], keep_stop=True) == "a!"
    ids, matched = run_to_stop(byte_level, byte_level.encode("good bye"), ["bye"])
    assert whole(byte_level, ids, ["bye"], matched, keep_stop=True) == "good bye"
    ids = [*byte_level.encode("a"), byte_level.eos_token_id]
    assert whole(byte_level, ids, matched=ids[-1], keep_stop=True) == "a"
    kept = {"keep_stop": True, "skip_special_tokens": False}
    assert whole(byte_level, ids, matched=ids[-1], **kept) == "a<|im_end|>"


@given(text=st.text(max_size=12), cuts=st.sets(st.integers(1, 11)))
def test_a_kept_stop_string_is_streamed_as_it_is_whole(byte_level, text, cuts):
    stops = ["STOP"]
    ids, matched = run_to_stop(byte_level, byte_level.encode(f"{text}STOP and on"), stops)
    parts = [ids[i:j] for i, j in zip([0, *sorted(cuts)], [*sorted(cuts), None])]
    output = OutputText(byte_level, stops, keep_stop=True)
    streamed = [output.push(part) for part in parts[:-1]] + [output.finish(parts[-1], matched)]
    assert "".join(streamed) == whole(byte_level, ids, stops, matched, keep_stop=True)
    assert "".join(streamed) == text + "STOP"


def test_an_unfinished_character_is_shown_at_the_end(byte_level):
    ids = byte_level.encode("a世")[:-1]
    assert whole(byte_level, ids, ["zz"]) == "a\ufffd"


def test_special_tokens_may_be_shown(byte_level):
    shown, skipped = sorted(byte_level.special_ids)[:2]
    (text,) = byte_level.encode("a")
    output = OutputText(byte_level, (), shown_ids=(shown,))
    said = output.push([text, shown, skipped]) + output.finish([text])
    assert said == f"a{byte_level.id_to_token(shown)}a"


@pytest.mark.parametrize("skip", [True, False])
@given(data=st.data())
def test_streamed_text_equals_whole_text(byte_level, sentencepiece, wordpiece, skip, data):
    tokenizer = data.draw(st.sampled_from([byte_level, sentencepiece, wordpiece]))
    token = st.integers(0, tokenizer.vocab_size - 1)
    ids = data.draw(st.lists(token | st.sampled_from(sorted(tokenizer.special_ids | {0}))))
    start = data.draw(st.integers(0, len(ids)))
    text = decode_all(tokenizer, ids[start : start + 2], skip_special_tokens=False)
    stops = [stop for stop in (text, text[1:3], "<|im_end|>a", "zz") if stop]
    ids, matched = run_to_stop(tokenizer, ids, stops)
    output = OutputText(tokenizer, stops, skip)
    cut = data.draw(st.integers(0, len(ids)))
    parts = [output.push([i]) for i in ids[:cut]]
    parts.append(output.finish(ids[cut:], matched))
    assert "".join(parts) == whole(tokenizer, ids, stops, matched, skip_special_tokens=skip)


@given(data=st.data())
def test_without_a_match_the_text_is_the_decoded_output(byte_level, data):
    ids = data.draw(st.lists(st.integers(0, byte_level.vocab_size - 1)))
    stops = ["the capital", "\ufffd\ufffd", "<|im_"]
    ids, matched = run_to_stop(byte_level, ids, stops)
    text = whole(byte_level, ids, stops, matched)
    complete = decode_all(byte_level, ids)
    assert complete.startswith(text) if matched else text == complete
