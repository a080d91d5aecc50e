"""What operators see of a server that serves: log lines, and metrics of all its processes."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path

import pytest

from phloem.server.background import running_server
from phloem.server.config import ServerArgs
from phloem.server.http_config import HttpArgs
from phloem.server.observability.access_log import AccessLog
from phloem.server.observability.watch import Observation

BODY = {"prompt": "say it", "temperature": 0, "max_tokens": 4, "ignore_eos": True}


class Kept:
    """A `Watcher` that keeps."""

    def __init__(self):
        self.watches = []

    def ended(self, watch):
        self.watches.append(watch)


@pytest.fixture(scope="module")
def kept():
    return Kept()


@pytest.fixture(scope="module")
def server(serve, write_script, kept):
    observation = Observation((AccessLog(), kept), keep_texts=True)
    return serve(write_script([]), {"observation": observation}, grammar_backend="fsm")


def watched(server, kept, path="/v1/completions", **body):
    """What was noted of a request: the watch ends when the answer is out, maybe a moment later."""
    before = len(kept.watches)
    response = server.post(path, **{**BODY, **body})
    while len(kept.watches) == before:
        pass
    return response, kept.watches[-1]


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_is_noted_with_its_stages_and_its_answer_s_id(server, kept, stream):
    response, watch = watched(server, kept, stream=stream, regex="[ab]+")
    assert watch.request_id == response.headers["x-request-id"]
    assert (watch.endpoint, watch.status) == ("/v1/completions", 200)
    assert [name for name, _, _ in watch.stages] == ["tokenize", "compile"]
    (sequence,) = watch.sequences
    assert [name for name, _, _ in sequence.stages] == ["queue", "prefill", "decode", "detokenize"]
    assert (sequence.reason, sequence.completion_tokens) == ("length", 4)
    assert sequence.params.max_new_tokens == 4
    marks = [watch.started, sequence.started, sequence.first, sequence.ended, watch.ended]
    assert marks == sorted(marks)


def test_each_sequence_has_a_record(server, kept):
    _, watch = watched(server, kept, n=3)
    assert len({each.rid for each in watch.sequences}) == 3


def test_what_is_refused_is_noted_too(server, kept):
    _, watch = watched(server, kept, temperature=-1)
    assert (watch.status, watch.sequences) == (400, [])


def test_texts_are_noted_where_they_are_wanted(server, kept):
    response, watch = watched(server, kept)
    assert '"prompt"' in watch.texts["request"]
    assert watch.texts["response"] == response.text


def test_a_line_of_the_log_tells_of_each_request(server, kept, caplog):
    with caplog.at_level(logging.INFO, "phloem.access"):
        _, watch = watched(server, kept)
    (line,) = [record for record in caplog.records if record.name == "phloem.access"]
    assert line.fields["request_id"] == watch.request_id
    assert line.fields["completion_tokens"] == 4


def test_the_processes_of_a_server_are_seen_as_one(write_script, tmp_path):
    args = ServerArgs(
        model=write_script([]), host_cache_gb=0.01, disk_cache=str(tmp_path / "kv"), page_size=1
    )
    http = HttpArgs(port=0, served_model_name="tiny", log_format="json", log_requests="meta")
    with running_server(args, http) as background:
        import httpx

        answer = httpx.post(f"{background.url}/v1/completions", json=BODY)
        text = httpx.get(f"{background.url}/metrics").text
    lines = [json.loads(line) for line in background.log if line.startswith("{")]
    (ready,) = [line for line in lines if line["message"] == "ready"]
    assert (ready["kv_cache"]["disk"], ready["endpoints"]["http"]) == (True, background.url)
    assert "read the script" in ready["startup_seconds"]["engine"]
    (line,) = [line for line in lines if line["logger"] == "phloem.access"]
    assert line["request_id"] == answer.headers["x-request-id"]
    assert line["rid"] == answer.json()["id"]
    assert line["process"] == "api"
    assert "say it" not in json.dumps(lines)
    assert 'phloem_startup_time_seconds{model_name="tiny",part="start the engine"}' in text
    assert 'phloem_step_time_seconds_count{model_name="tiny"}' in text
    assert set(re.findall(r"# TYPE (\S+ \S+)", text)) == documented()


def documented():
    """Names and kinds of the metrics that the page on operations has."""
    page = Path(__file__).parents[1] / "docs/operations.md"
    row = r"^\| `(phloem_\w+)` \|[^|]*\| (\w+) \|"
    found = re.findall(row, page.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(found) == len(set(found))
    return {f"{name} {kind}" for name, kind in found}
