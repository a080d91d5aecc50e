from __future__ import annotations

import pytest

from phloem.server.streamed_answer import AnswerReader


class Clock:
    """Shows the time that it was set to."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def text(piece, finish="null"):
    return f'data: {{"choices": [{{"text": "{piece}", "finish_reason": {finish}}}]}}\n\n'.encode()


USAGE = (
    b'data: {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 3, '
    b'"prompt_tokens_details": {"cached_tokens": 2}}}\n\n'
)
DONE = b"data: [DONE]\n\n"


def play(clock, *script):
    """Feed `(seconds since sending, bytes)` in order."""
    reader = AnswerReader(clock)
    for at, data in script:
        clock.now = 100.0 + at
        reader.feed(data)
    return reader.end()


def test_each_piece_has_the_time_of_its_coming(clock):
    answer = play(
        clock,
        (0.5, text("a")),
        (0.75, text("b")[:9]),
        (1.0, text("b")[9:] + text("c", '"length"')),
        (1.25, USAGE + DONE),
    )
    assert (answer.text, answer.arrivals) == ("abc", (0.5, 1.0, 1.0))
    assert (answer.ended, answer.finish_reason, answer.error) == (1.25, "length", None)
    assert (answer.prompt_tokens, answer.completion_tokens, answer.cached_tokens) == (5, 3, 2)


def test_an_event_without_text_has_no_time(clock):
    role = b'data: {"choices": [{"delta": {"role": "assistant"}}]}\n\n'
    answer = play(clock, (0.25, role), (0.5, text("a")), (2.0, text("", '"stop"')))
    assert (answer.arrivals, answer.finish_reason) == ((0.5,), "stop")


def test_feeding_returns_the_new_text(clock):
    reader = AnswerReader(clock)
    assert [reader.feed(text("a") + text("b")), reader.feed(USAGE)] == ["ab", ""]


def test_counts_that_the_server_does_not_tell_are_unknown(clock):
    answer = play(clock, (1.0, text("a", '"stop"')))
    assert (answer.prompt_tokens, answer.completion_tokens, answer.cached_tokens) == (None,) * 3


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ([text("a")], "without a finish reason"),
        ([text("a"), b'data: {"error": {"message": "out of memory"}}\n\n', DONE], "out of memory"),
        ([text("a"), b"data: nonsense\n\n", DONE], "nonsense"),
    ],
)
def test_an_answer_that_breaks_off_has_an_error_and_what_came(clock, script, says):
    answer = play(clock, *((i / 4, data) for i, data in enumerate(script)))
    assert says in answer.error
    assert (answer.text, answer.arrivals) == ("a", (0.0,))


def test_done_ends_an_answer_that_names_no_reason(clock):
    assert play(clock, (0.0, text("a")), (0.0, DONE)).error is None


def test_the_caller_may_know_better_why_it_ended(clock):
    reader = AnswerReader(clock)
    reader.feed(text("a"))
    assert reader.end("the connection failed").error == "the connection failed"
