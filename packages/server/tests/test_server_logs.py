"""Lines of the log, and those of requests."""

from __future__ import annotations

import asyncio
import json
import logging

import pytest

from phloem.server.messages import Finish, TextNews
from phloem.server.observability.access_log import AccessLog, access_fields
from phloem.server.observability.excerpts import MOST_BYTES, Excerpts
from phloem.server.observability.logs import JsonFormatter, TextFormatter
from phloem.server.observability.watch import (
    RequestWatch,
    SequenceRecord,
    Stage,
    current_watch,
    stage,
    watching,
)

SCOPE = {"type": "http", "method": "POST", "headers": [], "state": {"request_id": "req-1"}}


def record(message="said", level=logging.INFO, error=None, **extra):
    made = logging.LogRecord("phloem.x", level, "file", 1, message, (), error)
    made.__dict__.update(extra)
    return made


def ended_watch(**options):
    watch = RequestWatch(dict(SCOPE), started=10.0, started_ns=0)
    watch.ended, watch.endpoint, watch.status = 14.0, "/v1/completions", 200
    watch.stages = [Stage("tokenize", 10.0, 10.5)]
    timings = {"queue": 0.25, "ttft": 1.0, "decode": 1.5, "total": 2.5}
    for number in range(options.pop("sequences", 1)):
        each = SequenceRecord(f"r-{number}", None, 11.0, 12.25, 13.75, "stop", 10, 4, 6)
        each.timings = timings
        watch.sequences.append(each)
    return watch


def test_a_line_of_json_has_what_machines_look_for():
    line = json.loads(JsonFormatter("scheduler").format(record(fields={"tokens": 3})))
    assert line.pop("time").endswith("Z")
    assert line == {
        "level": "info",
        "process": "scheduler",
        "logger": "phloem.x",
        "message": "said",
        "tokens": 3,
    }


def test_a_traceback_stays_on_its_line_of_json():
    try:
        raise ValueError("two\nlines")
    except ValueError as error:
        line = JsonFormatter("api").format(record(error=(type(error), error, error.__traceback__)))
    assert "\n" not in line
    assert "two\nlines" in json.loads(line)["exception"]


def test_a_line_of_text_shows_its_fields_so_that_they_can_be_told_apart():
    line = TextFormatter().format(record(fields={"a": 1, "b": "two words", "c": ""}))
    assert line.endswith('INFO phloem.x: said a=1 b="two words" c=""')


@pytest.mark.parametrize("formatter", [TextFormatter(), JsonFormatter("api")])
def test_lines_within_a_request_say_which(formatter):
    with watching(dict(SCOPE), ()):
        assert "req-1" in formatter.format(record())
    assert "req-1" not in formatter.format(record())


def test_a_request_s_line_has_its_tokens_and_where_its_time_went():
    assert access_fields(ended_watch()) == {
        "request_id": "req-1",
        "method": "POST",
        "endpoint": "/v1/completions",
        "status": 200,
        "duration_ms": 4000,
        "tokenize_ms": 500,
        "rid": "r-0",
        "sequences": 1,
        "finish_reason": "stop",
        "prompt_tokens": 10,
        "cached_tokens": 4,
        "completion_tokens": 6,
        "retractions": 0,
        "ttft_ms": 1250,
        "queue_ms": 250,
        "prefill_ms": 750,
        "decode_ms": 1500,
        "detokenize_ms": 250,
    }


def test_several_sequences_are_one_line_with_the_sum_of_their_tokens():
    fields = access_fields(ended_watch(sequences=3))
    assert (fields["sequences"], fields["completion_tokens"]) == (3, 18)
    assert fields["queue_ms"] == 250


def test_requests_are_logged_at_info_and_probes_at_debug(caplog):
    watch = ended_watch()
    with caplog.at_level(logging.DEBUG, "phloem.access"):
        AccessLog().ended(watch)
        watch.endpoint = "/health"
        AccessLog().ended(watch)
    assert [each.levelname for each in caplog.records] == ["INFO", "DEBUG"]
    assert caplog.records[0].getMessage() == "POST /v1/completions 200"


def test_a_watcher_that_fails_keeps_nothing_from_the_others(caplog):
    seen = []

    class Broken:
        def ended(self, watch):
            raise RuntimeError("broken")

    class Sees:
        def ended(self, watch):
            seen.append(watch)

    with watching(dict(SCOPE), (Broken(), Sees())) as watch:
        assert current_watch() is watch
        with pytest.raises(ValueError), stage("tokenize"):
            raise ValueError
    assert seen == [watch]
    assert [each.name for each in watch.stages] == ["tokenize"]
    assert current_watch() is None


def test_stages_are_known_as_far_as_the_sequence_came():
    refused = SequenceRecord("r", None, 1.0, ended=2.0, reason="refused")
    assert refused.stages == []
    waited = SequenceRecord("r", None, 1.0, ended=2.0, timings={"queue": 0.5})
    assert waited.stages == [("queue", 1.0, 1.5)]


def test_excerpts_are_the_beginnings_of_both_texts():
    async def app(scope, receive, send):
        while (await receive())["more_body"]:
            pass
        await send({"type": "http.response.start", "status": 200})
        for _ in range(3):
            await send({"type": "http.response.body", "body": b"b" * 1000})

    async def run():
        messages = [{"body": b"a\xff", "more_body": True}, {"body": b"c", "more_body": False}]
        sent = []

        async def receive():
            return messages.pop(0)

        async def send(message):
            sent.append(message)

        with watching(dict(SCOPE), ()) as watch:
            await Excerpts(app)(dict(SCOPE), receive, send)
        assert watch.texts == {"request": "a\ufffdc", "response": "b" * MOST_BYTES}
        assert sum(len(message.get("body", b"")) for message in sent) == 3000

    asyncio.run(run())


def test_the_news_of_a_sequence_fill_its_record():
    from phloem.server.http.metrics import Metrics

    with watching(dict(SCOPE), ()) as watch:
        meter = Metrics("m").meter()
        meter.take(TextNews("r", "", [1], None, 10, 1, 4))
        meter.take(TextNews("r", "", [2, 3], Finish("length"), 10, 3, 4, 2, {"queue": 0.5}))
    (each,) = watch.sequences
    assert (each.prompt_tokens, each.cached_tokens, each.completion_tokens) == (10, 4, 3)
    assert (each.reason, each.retractions, each.timings) == ("length", 2, {"queue": 0.5})
    assert each.started <= each.first <= each.ended
