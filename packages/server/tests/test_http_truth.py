"""What an answer tells of its own making."""

from __future__ import annotations

import json

from phloem.server.http.completions import Choice, CompletionForm
from phloem.server.http.truth import timings_of, truth_fields, truth_headers
from phloem.server.messages import CacheMiss, Finish, TextNews

SECONDS = {"queue": 0.5, "ttft": 0.75, "decode": 2.0, "total": 2.75}


def news(**fields):
    given = {"timings": SECONDS, "finish": Finish("length"), "completion_tokens": 5} | fields
    return TextNews("r", "a", [1], prompt_tokens=3, cached_tokens=2, **given)


def test_the_first_token_ends_the_prefill_and_the_others_share_the_rest():
    assert timings_of(news()) == {
        "queue_ms": 500.0,
        "prefill_ms": 250.0,
        "decode_ms": 2000.0,
        "per_token_ms": 500.0,
    }


def test_what_did_not_come_to_be_has_no_time():
    assert timings_of(news(completion_tokens=1))["per_token_ms"] is None
    waited = timings_of(news(timings={"queue": 1.0}))
    assert waited == {
        "queue_ms": 1000.0,
        "prefill_ms": None,
        "decode_ms": None,
        "per_token_ms": None,
    }


def test_headers_have_what_is_known():
    first = news(finish=None, timings={"queue": 0.5, "ttft": 0.75})
    assert dict(truth_headers(first)) == {
        b"x-phloem-cached-tokens": b"2",
        b"x-phloem-queue-ms": b"500.0",
        b"x-phloem-prefill-ms": b"250.0",
    }
    unknown = news(finish=None, timings=None)
    assert dict(truth_headers(unknown)) == {b"x-phloem-cached-tokens": b"2"}


def test_a_whole_answers_headers_have_all():
    ended = news(
        completion_tokens=3,
        timings={"queue": 0.5, "ttft": 0.75, "decode": 0.5},
        cache_miss=CacheMiss("diverged", 7),
        retractions=1,
    )
    headers = dict(truth_headers(ended))
    assert headers[b"x-phloem-decode-ms"] == b"500.0"
    assert headers[b"x-phloem-per-token-ms"] == b"250.0"
    assert headers[b"x-phloem-retractions"] == b"1"
    assert headers[b"x-phloem-cache-miss"] == b"diverged; at=7"


def test_a_cache_miss_is_told_where_there_is_one():
    assert "cache_miss" not in truth_fields(news())
    told = truth_fields(news(cache_miss=CacheMiss("diverged", 7), retractions=2))
    assert told["cache_miss"] == {"reason": "diverged", "at": 7}
    assert told["retractions"] == 2


def form(count):
    return CompletionForm("id", "model", count, True, [Choice() for _ in range(count)])


def test_an_only_sequence_tells_it_at_the_top_and_several_each_in_its_choice():
    alone = json.loads(form(1).whole([news()]))
    assert alone["timings"]["queue_ms"] == 500
    assert "timings" not in alone["choices"][0]
    both = json.loads(form(2).whole([news(), news(timings={"queue": 1.0})]))
    assert "timings" not in both
    assert [choice["timings"]["queue_ms"] for choice in both["choices"]] == [500, 1000]


def test_a_stream_tells_it_with_the_end_of_each_choice():
    for count in (1, 2):
        streaming = form(count)
        ends = [streaming.chunk(index, news()) for index in range(count)]
        for end in ends:
            chunk = json.loads(end.removeprefix(b"data: "))
            holder = chunk if count == 1 else chunk["choices"][0]
            assert holder["timings"]["prefill_ms"] == 250
            assert chunk["usage"] is None
