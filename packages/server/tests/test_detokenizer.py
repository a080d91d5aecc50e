from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from phloem.server.detokenizer import IncrementalDetokenizer, MarkedText, decode_all


def byte_ids(tokenizer, data: bytes) -> list[int]:
    """One token a byte, whatever the merges are."""
    table = {tokenizer.token_bytes(i): i for i in range(tokenizer.vocab_size)}
    return [table[bytes([byte])] for byte in data]


def stream(tokenizer, ids, **options) -> list[str]:
    detokenizer = IncrementalDetokenizer(tokenizer, **options)
    return [*(detokenizer.push([i]) for i in ids), detokenizer.flush()]


def test_a_character_of_two_tokens_appears_when_it_is_whole(byte_level):
    assert stream(byte_level, byte_ids(byte_level, "ď".encode())) == ["", "ď", ""]


def test_an_emoji_of_four_tokens_appears_when_it_is_whole(byte_level):
    ids = byte_ids(byte_level, "🌳".encode())
    assert stream(byte_level, ids) == ["", "", "", "🌳", ""]


def test_an_unfinished_character_at_the_end_is_flushed_once(byte_level):
    detokenizer = IncrementalDetokenizer(byte_level)
    assert detokenizer.push(byte_ids(byte_level, b"a\xf0\x9f\x8c")) == "a"
    assert detokenizer.flush() == "\ufffd"
    assert detokenizer.flush() == ""


def test_a_space_after_an_unfinished_character_spoils_only_that_character(byte_level):
    assert stream(byte_level, byte_ids(byte_level, b"\xc4 a")) == ["", "\ufffd ", "a", ""]


def test_invalid_bytes_in_the_middle_become_replacement_characters(byte_level):
    assert "".join(stream(byte_level, byte_ids(byte_level, b"a\xffb\x80c"))) == "a\ufffdb\ufffdc"


def test_special_tokens_are_skipped_or_shown(byte_level):
    ids = [*byte_level.encode("hi"), byte_level.eos_token_id]
    assert decode_all(byte_level, ids) == "hi"
    assert decode_all(byte_level, ids, skip_special_tokens=False) == "hi<|im_end|>"


def test_ids_outside_the_vocabulary_have_no_text(byte_level, wordpiece):
    for tokenizer in (byte_level, wordpiece):
        assert decode_all(tokenizer, [-1, tokenizer.vocab_size, 10**7]) == ""


def test_marked_text_shows_a_special_token_and_keeps_the_bytes_around_it_together(byte_level):
    first, second = byte_ids(byte_level, "ď".encode())
    text = MarkedText(byte_level)
    pieces = [text.push(i) for i in (first, byte_level.eos_token_id, second)]
    assert pieces == ["", "<|im_end|>", "ď"]


def test_the_first_word_of_an_output_keeps_its_space(sentencepiece):
    ids = sentencepiece.encode("Pab")
    assert sentencepiece.decode(ids) == "Pab"
    assert decode_all(sentencepiece, ids) == " Pab"


def test_byte_tokens_of_a_sentencepiece_vocabulary_join_to_characters(sentencepiece):
    ids = [sentencepiece.token_to_id(f"<0x{byte:02X}>") for byte in "世".encode()]
    assert stream(sentencepiece, ids) == ["", "", "世", ""]
    assert decode_all(sentencepiece, [*ids, ids[0], *sentencepiece.encode("a")]) == "世\ufffd a"


def test_decoders_that_look_across_tokens_are_streamed_by_windows(wordpiece):
    ids = wordpiece.encode("hello worlds !")
    assert stream(wordpiece, ids) == ["hello", " world", "s", " !", ""]


@given(data=st.data())
def test_byte_level_text_equals_what_the_library_decodes_at_once(byte_level, data):
    ids = data.draw(st.lists(st.integers(0, byte_level.vocab_size - 1)))
    for skip in (True, False):
        assert decode_all(byte_level, ids, skip) == byte_level.decode(ids, skip)


@given(data=st.data())
def test_text_does_not_depend_on_how_the_ids_are_split(byte_level, sentencepiece, wordpiece, data):
    for tokenizer in (byte_level, sentencepiece, wordpiece):
        ids = data.draw(st.lists(st.integers(-1, tokenizer.vocab_size)))
        cuts = sorted(data.draw(st.lists(st.integers(0, len(ids)))))
        detokenizer = IncrementalDetokenizer(tokenizer)
        bounds = itertools.pairwise([0, *cuts, len(ids)])
        parts = [detokenizer.push(ids[begin:end]) for begin, end in bounds]
        assert "".join([*parts, detokenizer.flush()]) == decode_all(tokenizer, ids)


@given(text=st.text())
def test_valid_text_streams_without_replacement_characters(byte_level, text):
    parts = stream(byte_level, byte_level.encode(text, add_special_tokens=False))
    assert "".join(parts) == text
    assert "\ufffd" in text or all("\ufffd" not in part for part in parts)


@given(text=st.text())
def test_sentencepiece_text_comes_back_after_its_added_space(sentencepiece, text):
    ids = sentencepiece.encode(text)
    if text and "▁" not in text:
        assert decode_all(sentencepiece, ids, skip_special_tokens=False) == " " + text
