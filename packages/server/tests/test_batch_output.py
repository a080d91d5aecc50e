"""The results' file: what an earlier run left, and what is added."""

from __future__ import annotations

import asyncio
import json
import os
import stat
from contextlib import closing

import msgspec
import pytest

from phloem.server.batch.output import OutputFile

KEYS = {key: f"batch_req_{key}{key}" for key in ("a", "b", "c", 4)}


def record(custom_id, status=200, line=None, id=None):
    response = None if line else {"status_code": status, "request_id": None, "body": {"é": "x\n"}}
    error = {"code": "invalid_line", "message": "no", "line": line} if line else None
    return {
        "id": id or KEYS.get(custom_id or line, "batch_req_zz"),
        "custom_id": custom_id,
        "response": response,
        "error": error,
    }


def encoded(*args, **options):
    return msgspec.json.encode(record(*args, **options)) + b"\n"


def opened(path, keys=KEYS, sync_seconds=0.0, **options):
    return closing(OutputFile(path, keys, sync_seconds, **options))


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
        (encoded("a", id="batch_req_b"), "line 1 of out answers another request of custom_id 'a'"),
        (encoded("a") + encoded("a"), "line 2 of out is a second result of 'a'"),
        (encoded("a") + b"notes", "line 2 of out is no result"),
        (encoded("a") + b"\xff\xfe", "line 2 of out is no result"),
        (encoded("a") + b'{"id":"batch_req_other', "line 2 of out is no result"),
        (encoded("a") + b'{"id":"batch_req_zz","custom_id":"z"', "line 2 of out is no result"),
        (encoded(None, line=4, id="batch_req_zz") + b"notes\n", "line 2 of out is no result"),
        (b"\0" * 100, "line 1 of out is no result"),
        (b"an essay, without an end of line", "line 1 of out is no result"),
        (b"\x89PNG\r\n\x1a\n", "line 1 of out is no result"),
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


def test_results_of_lines_that_were_mended_since_make_room_for_new_ones(tmp_path):
    path = tmp_path / "out"
    path.write_bytes(encoded(None, line=9) + encoded("a") + encoded("b", line=2, id="batch_req_zz"))
    path.chmod(0o640)
    with opened(path) as output:
        assert (output.done, output.failed) == ({"a"}, 0)
        append(output, "b")
    assert path.read_bytes() == encoded("a") + encoded("b")
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert [each.name for each in tmp_path.iterdir()] == ["out"]


def test_errors_that_may_pass_are_asked_again_where_that_is_wanted(tmp_path):
    path = tmp_path / "out"
    lines = [encoded("a", 500), encoded("b", 400), encoded("c", 429)]
    path.write_bytes(b"".join(lines))
    with opened(path) as output:
        assert (output.done, output.failed) == ({"a", "b", "c"}, 3)
    assert path.read_bytes() == b"".join(lines)
    with opened(path, retry_failed=True) as output:
        assert (output.done, output.failed) == ({"b"}, 1)
        append(output, "a")
        with pytest.raises(ValueError, match="out is written by another run"):
            OutputFile(path, KEYS, 0.0)
    assert path.read_bytes() == lines[1] + encoded("a")


def test_results_go_to_a_regular_file_alone(tmp_path):
    path = tmp_path / "out"
    os.mkfifo(path)
    with pytest.raises(ValueError, match="out is no regular file"):
        OutputFile(path, KEYS, 0.0)


def test_a_link_to_the_file_stays_one(tmp_path):
    path, link = tmp_path / "out", tmp_path / "link"
    path.write_bytes(encoded("a", 500))
    link.symlink_to(path)
    with opened(link, retry_failed=True) as output:
        append(output, "b")
    assert link.is_symlink()
    assert path.read_bytes() == encoded("b")
