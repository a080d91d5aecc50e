"""What `phloem batch` refuses before anything runs, and what it says when nothing is left to do."""

from __future__ import annotations

import json
import os

import httpx
import pytest

from phloem.server.batch.lines import parse_line


def line(custom_id, **fields):
    body = {"custom_id": custom_id, "method": "POST", "url": "/v1/completions", "body": {}}
    return json.dumps(body | fields)


def result(custom_id, status=200):
    response = {"status_code": status, "request_id": None, "body": {}}
    id = parse_line(1, line(custom_id).encode()).result_id
    return json.dumps({"id": id, "custom_id": custom_id, "response": response, "error": None})


@pytest.fixture
def files(tmp_path):
    return tmp_path / "in", tmp_path / "out"


def write(path, *lines):
    path.write_text("".join(each + "\n" for each in lines))


def test_two_requests_of_one_name_end_it_before_it_begins(phloem, files):
    source, target = files
    write(source, line("a"), line("b"), line("a"))
    done = phloem("batch", str(source), str(target))
    assert done.code == 2
    assert "custom_id 'a' is in line 1 and in line 3" in " ".join(done.err.split())
    assert not target.exists()


def test_an_input_that_is_not_there_is_a_sentence(phloem, files):
    done = phloem("batch", *map(str, files))
    assert done.code == 2
    assert "No such file" in done.err


def test_the_input_is_not_written_over(phloem, files):
    source, _ = files
    write(source, line("a"))
    done = phloem("batch", str(source), str(source))
    assert (done.code, "are one file" in done.err) == (2, True)
    assert source.read_text() == line("a") + "\n"


def test_the_output_of_something_else_is_refused(phloem, files):
    source, target = files
    write(source, line("a"))
    write(target, result("z"))
    done = phloem("batch", str(source), str(target))
    assert (done.code, "custom_id that the input does not have" in done.err) == (2, True)


@pytest.mark.parametrize(
    "flags", [("--page-size", "16"), ("--served-model-name", "x"), ("--model", "m")]
)
def test_options_of_an_engine_do_not_go_with_a_server(phloem, files, flags):
    source, target = files
    write(source, line("a"))
    done = phloem("batch", str(source), str(target), "--server", "http://127.0.0.1:9", *flags)
    assert done.code == 2
    assert f"{flags[0]} is for an engine that is started here" in done.err


def test_an_address_that_is_none_is_a_usage_error(phloem, files):
    source, target = files
    write(source, line("a"))
    done = phloem("batch", str(source), str(target), "--server", "127.0.0.1:9")
    assert (done.code, "is no address of a server" in done.err) == (2, True)


@pytest.mark.parametrize(("status", "code"), [(200, 0), (400, 3)])
def test_nothing_is_started_where_nothing_is_left(phloem, files, status, code):
    source, target = files
    write(source, line("a"), line("b"))
    write(target, result("a"), result("b", status))
    done = phloem("batch", str(source), str(target))
    assert (done.code, "all 2 lines have their results already" in done.err) == (code, True)


@pytest.fixture
def refusing(monkeypatch):
    """Every server refuses the key."""
    answer = httpx.MockTransport(lambda request: httpx.Response(401, json={"error": "who?"}))
    client = httpx.AsyncClient
    monkeypatch.setattr(httpx, "AsyncClient", lambda **options: client(**options, transport=answer))


def test_a_refused_key_is_wrong_usage_and_leaves_no_result(phloem, files, refusing):
    source, target = files
    write(source, line("a"), line("b"))
    done = phloem("batch", str(source), str(target), "--server", "http://x", "--api-key", "k")
    assert (done.code, "the server refuses the key" in done.err) == (2, True)
    assert target.read_bytes() == b""


@pytest.mark.parametrize("command", ["batch", "generate"])
def test_a_key_that_no_header_can_have_is_a_sentence(phloem, files, command):
    source, target = files
    write(source, line("a"))
    given = [str(source), str(target), "--server"] if command == "batch" else ["hi", "--base-url"]
    done = phloem(command, *given, "http://127.0.0.1:9", "--api-key", "schlüssel")
    assert (done.code, "other than printable ASCII" in " ".join(done.err.split())) == (2, True)


def test_an_output_that_is_no_file_is_wrong_usage(phloem, files):
    source, target = files
    write(source, line("a"))
    os.mkfifo(target)
    done = phloem("batch", str(source), str(target), "--server", "http://127.0.0.1:9")
    assert (done.code, "is no regular file" in done.err) == (2, True)


def test_errors_that_may_pass_are_asked_again(phloem, files, refusing):
    source, target = files
    write(source, line("a"), line("b"))
    write(target, result("a"), result("b", 500))
    asked = ("batch", str(source), str(target), "--server", "http://x")
    assert phloem(*asked).code == 3
    assert (phloem(*asked, "--retry-failed").code, target.read_text()) == (2, result("a") + "\n")
