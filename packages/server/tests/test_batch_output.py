"""The results' file: what an earlier run left, and what is added."""

from __future__ import annotations

import asyncio
import json
from contextlib import closing

import pytest

from phloem.server.batch.output import OutputFile

KEYS = {"a", "b", "c", 4}


def record(custom_id, status=200, line=None):
    response = None if line else {"status_code": status, "request_id": None, "body": {"é": "x\n"}}
    error = {"code": "invalid_line", "message": "no", "line": line} if line else None
    return {"id": "batch_req_1", "custom_id": custom_id, "response": response, "error": error}


def encoded(*args, **options):
    return json.dumps(record(*args, **options)).encode() + b"\n"


def opened(path, keys=KEYS, sync_seconds=0.0):
    return closing(OutputFile(path, keys, sync_seconds))


def append(output, key, status=200):
    asyncio.run(output.append(key, record(key, status), ok=status == 200))


@pytest.mark.parametrize("sync_seconds", [0.0, 1000.0])
def test_results_are_found_again(tmp_path, sync_seconds):
    path = tmp_path / "out"
    with opened(path, sync_seconds=sync_seconds) as output:
        assert output.done == set()
        append(output, "a")
        append(output, "b", 400)
    with opened(path) as output:
        assert (output.done, output.failed) == ({"a", "b"}, 1)
    assert [json.loads(line) for line in path.read_bytes().splitlines()] == [
        record("a"),
        record("b", 400),
    ]


def test_lines_without_a_name_are_told_by_their_number(tmp_path):
    path = tmp_path / "out"
    path.write_bytes(encoded(None, line=4))
    with opened(path) as output:
        assert (output.done, output.failed) == ({4}, 1)


def test_a_torn_last_line_is_cut_off_or_completed(tmp_path):
    first, second = encoded("a"), encoded("b")
    for size in range(len(second)):
        path = tmp_path / f"out-{size}"
        path.write_bytes(first + second[:size])
        kept = ["a", "b"] if size == len(second) - 1 else ["a"]
        with opened(path, sync_seconds=1000.0) as output:
            assert output.done == set(kept)
            append(output, "c")
        lines = path.read_bytes().splitlines()
        assert [json.loads(line)["custom_id"] for line in lines] == [*kept, "c"]


def test_zeros_that_a_lost_power_left_are_cut_off(tmp_path):
    path = tmp_path / "out"
    path.write_bytes(encoded("a") + b"\0" * 100)
    with opened(path) as output:
        assert output.done == {"a"}
    assert path.read_bytes() == encoded("a")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"notes\n", "line 1 of out is no result of a batch"),
        (b"{}\n", "line 1 of out is no result of a batch"),
        (encoded("a") + b"\n", "line 2 of out is no result"),
        (encoded("a") + encoded("z"), "line 2 of out has a custom_id that the input does not"),
        (encoded(None, line=9), "line 1 of out has a custom_id that the input does not"),
    ],
)
def test_a_file_of_something_else_is_refused_and_left_as_it_is(tmp_path, content, says):
    path = tmp_path / "out"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=says):
        OutputFile(path, KEYS, 0.0)
    assert path.read_bytes() == content


def test_one_run_at_a_time_writes_a_file(tmp_path):
    path = tmp_path / "out"
    with opened(path), pytest.raises(ValueError, match="out is written by another run"):
        OutputFile(path, KEYS, 0.0)
    with opened(path):
        pass
