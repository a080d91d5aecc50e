from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phloem.server.openai_wire import BadStream, EventReader, api_base, error_sentence


def pieces_of(reader, *parts):
    return [choice.piece for part in parts for e in reader.feed(part) for choice in e.choices or ()]


def test_completions_and_chats_are_both_read():
    reader = EventReader()
    completion = b'data: {"choices": [{"index": 0, "text": "a", "finish_reason": null}]}\n\n'
    chat = b'data: {"choices": [{"delta": {"role": "assistant", "content": "b"}}]}\n\n'
    role_alone = b'data: {"choices": [{"delta": {"role": "assistant", "content": null}}]}\n\n'
    assert pieces_of(reader, completion, chat, role_alone) == ["a", "b", ""]


def test_usage_comes_with_what_was_cached_or_without():
    reader = EventReader()
    counts = b'"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11'
    details = b', "prompt_tokens_details": {"cached_tokens": 4, "audio_tokens": 0}'
    (told,) = reader.feed(b'data: {"choices": [], "usage": {' + counts + details + b"}}\n\n")
    (silent,) = reader.feed(b'data: {"choices": [], "usage": {' + counts + b"}}\n\n")
    assert (told.usage.prompt_tokens, told.usage.completion_tokens) == (9, 2)
    assert (told.usage.cached_tokens, silent.usage.cached_tokens) == (4, None)


STREAM = (
    ': a comment\r\nevent: message\r\ndata: {"choices": [{"text": "Příliš"}]}\r\n\r\n'
    'data:{"choices": [\ndata: {"text": "🌳"}]}\n\n'
    'id: 7\rdata: {"choices": [{"text": "end"}]}\r\r'
    "data: [DONE]\n\n"
    "data: what follows is passed over\n\n"
).encode()


@given(st.sets(st.integers(0, len(STREAM))))
def test_a_stream_may_be_cut_anywhere(cuts):
    edges = [0, *sorted(cuts), len(STREAM)]
    reader = EventReader()
    parts = [STREAM[a:b] for a, b in itertools.pairwise(edges)]
    assert pieces_of(reader, *parts) == ["Příliš", "🌳", "end"]
    assert reader.done


def test_an_event_without_its_blank_line_has_not_come():
    reader = EventReader()
    assert pieces_of(reader, b'data: {"choices": [{"text": "a"}]}\n') == []
    assert pieces_of(reader, b"\n") == ["a"]


@pytest.mark.parametrize("data", [b"<html>", b"[1]", b"\xff", b'{"choices": 3}'])
def test_what_is_no_event_is_refused_with_its_text(data):
    with pytest.raises(BadStream, match="the server sent"):
        list(EventReader().feed(b"data: " + data + b"\n\n"))


@pytest.mark.parametrize(
    ("given_url", "base"),
    [
        ("http://127.0.0.1:30000", "http://127.0.0.1:30000/v1"),
        ("http://h/", "http://h/v1"),
        ("https://h/v1/", "https://h/v1"),
        ("https://h/proxy/openai", "https://h/proxy/openai"),
    ],
)
def test_a_bare_host_gets_the_usual_path(given_url, base):
    assert api_base(given_url) == base


@pytest.mark.parametrize("url", ["127.0.0.1:30000", "ftp://h", "http://", ""])
def test_what_is_no_http_address_is_refused(url):
    with pytest.raises(ValueError, match="is no address of a server"):
        api_base(url)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b'{"error": {"message": "too long", "type": "x"}}', "too long (HTTP status 400)"),
        (b'{"error": "too long"}', "too long (HTTP status 400)"),
        (b'{"detail": "no"}', '{"detail": "no"} (HTTP status 400)'),
        (b"<h1>Bad</h1>\n", "<h1>Bad</h1> (HTTP status 400)"),
        (b"", "the server gives no reason (HTTP status 400)"),
    ],
)
def test_a_refusal_is_told_in_the_servers_words(body, says):
    assert error_sentence(400, body) == says
