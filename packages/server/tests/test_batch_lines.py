"""Which lines are requests, and what is said of those that are none."""

from __future__ import annotations

import json
import os

import pytest

from phloem.server.batch.lines import BadLine, RequestLine, check_input, parse_line, read_lines

GOOD = {
    "custom_id": "a",
    "method": "POST",
    "url": "/v1/completions",
    "body": {"prompt": "é", "n": 1},
}


def line_of(**fields):
    return parse_line(7, json.dumps({**GOOD, **fields}).encode())


def test_a_request_keeps_its_body_as_it_was_written():
    text = (
        b'{"custom_id":"a","method":"POST","url":"/v1/completions","body":{"x": 1.0,"y":"\\u00e9"}}'
    )
    assert parse_line(3, text) == RequestLine(
        3, "a", "/v1/completions", b'{"x": 1.0,"y":"\\u00e9"}'
    )


@pytest.mark.parametrize(
    ("fields", "custom_id", "says"),
    [
        ({"custom_id": None}, None, "custom_id is missing"),
        ({"custom_id": 3}, None, "custom_id is missing"),
        ({"custom_id": ""}, None, "custom_id is missing"),
        ({"method": "GET"}, "a", "method is 'GET': give POST"),
        ({"url": "/v1/models"}, "a", "url is '/v1/models': give one of /v1/chat/completions"),
        ({"url": None}, "a", "url is missing"),
        ({"body": None}, "a", "body is no JSON object"),
        ({"body": [1]}, "a", "body is no JSON object"),
        ({"body": {"stream": True}}, "a", "stream is set"),
    ],
)
def test_a_line_that_is_no_request_says_why(fields, custom_id, says):
    line = line_of(**fields)
    assert isinstance(line, BadLine)
    assert (line.number, line.custom_id) == (7, custom_id)
    assert says in line.message
    assert line.key == (custom_id or 7)


@pytest.mark.parametrize("text", [b"{", b"[1]", b"\xff", b"[" * 100_000, b"{} {}"])
def test_what_cannot_be_read_is_a_bad_line(text):
    line = parse_line(1, text)
    assert isinstance(line, BadLine)
    assert "line 1 is no JSON object" in line.message


def write(path, *lines):
    path.write_bytes(b"\n".join(lines))
    return path


def encoded(**fields):
    return json.dumps({**GOOD, **fields}).encode()


def test_blank_lines_and_a_byte_order_mark_are_passed_over(tmp_path):
    path = write(
        tmp_path / "in", b"\xef\xbb\xbf" + encoded(), b"", b"  \r", encoded(custom_id="b"), b"x"
    )
    assert [(line.number, line.key) for line in read_lines(path)] == [(1, "a"), (4, "b"), (5, 5)]
    assert set(check_input(path)) == {"a", "b", 5}


def test_two_requests_of_one_name_are_named(tmp_path):
    lines = [encoded(), encoded(custom_id="b"), encoded(method="GET")]
    path = write(tmp_path / "in", *lines)
    with pytest.raises(ValueError, match="custom_id 'a' is in line 1 and in line 3 of in"):
        check_input(path)


def test_an_input_without_lines_is_refused(tmp_path):
    with pytest.raises(ValueError, match="has no line"):
        check_input(write(tmp_path / "in", b"", b" "))


def test_the_id_of_a_result_says_what_was_asked(tmp_path):
    ids = [
        line_of(**fields).result_id
        for fields in (
            {},
            {"custom_id": "b"},
            {"url": "/v1/embeddings"},
            {"body": {"prompt": "x"}},
            {"method": "GET"},
            {"method": "PUT"},
        )
    ]
    assert len(set(ids)) == 6
    assert line_of().result_id == parse_line(900, json.dumps(GOOD).encode()).result_id
    assert check_input(write(tmp_path / "in", encoded())) == {"a": line_of().result_id}


def test_an_input_that_cannot_be_read_twice_is_refused(tmp_path):
    os.mkfifo(tmp_path / "in")
    with pytest.raises(ValueError, match="in is no regular file"):
        check_input(tmp_path / "in")
