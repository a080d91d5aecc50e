"""What `phloem batch` refuses before anything runs, and what it says when nothing is left to do."""

from __future__ import annotations

import json

import pytest


def line(custom_id, **fields):
    body = {"custom_id": custom_id, "method": "POST", "url": "/v1/completions", "body": {}}
    return json.dumps(body | fields)


def result(custom_id, status=200):
    response = {"status_code": status, "request_id": None, "body": {}}
    return json.dumps({"id": "x", "custom_id": custom_id, "response": response, "error": None})


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
