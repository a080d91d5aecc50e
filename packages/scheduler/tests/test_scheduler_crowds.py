"""Many requests of all kinds at once: each gets what it gets alone, whatever path its rows take.

What a step does for all rows in one operation (room, commits, tokens, ends) and what it does row by
row (stop strings, logprobs, many stop ids, failures) have to agree where they meet.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

STOP_IDS = st.lists(st.integers(1, 49), max_size=3).map(tuple)
MANY_STOP_IDS = st.just(tuple(range(30, 42)))
STOP_STRINGS = st.lists(st.sampled_from(["7", "23", "4.1", ".9."]), max_size=2).map(tuple)

KIND = st.fixed_dictionaries(
    {
        "max_new_tokens": st.integers(0, 40),
        "ignore_eos": st.booleans(),
    },
    optional={
        "stop_token_ids": STOP_IDS | MANY_STOP_IDS,
        "stop": STOP_STRINGS,
        "min_new_tokens": st.integers(1, 6),
        "presence_penalty": st.just(0.5),
        "top_logprobs": st.integers(0, 2),
        "prompt_logprobs_from": st.integers(0, 9),
        "temperature": st.just(1.0),
    },
)
REQUEST = st.tuples(
    st.integers(1, 4),  # its stem
    st.integers(0, 24),  # how much of it
    st.lists(st.integers(1, 5), min_size=1, max_size=8),  # tokens of its own
    KIND,
    st.none() | st.integers(0, 25),  # the step after which it is aborted
)


class Numbers:
    """A StopChecker for which the text is the tokens' numbers with a dot after each."""

    def matcher(self, stop):
        return NumberMatcher(stop)


class NumberMatcher:
    def __init__(self, stop):
        self._stop = stop
        self._text = ""

    def push(self, token_id):
        before, self._text = self._text, self._text + f"{token_id}."
        new = self._text[max(len(before) - 2, 0) :]
        return next((s for s in self._stop if s in new), None)


@pytest.fixture
def weighted_script(any_script):
    """The token that the whole history calls for, and three that it rules out less."""

    def script(history):
        token = any_script(history)
        return {token: 0.6, 1 + token % 49: 0.2, 1 + (token + 7) % 49: 0.2}

    return script


def made(request, number):
    stem, shared, own, kind, _ = request
    params = {"seed": number, **kind}
    if params.get("min_new_tokens", 0) > params["max_new_tokens"]:
        del params["min_new_tokens"]
    return [stem] * shared + own, params


def told(ended):
    """What a client hears of a request."""
    reason = ended.finish_reason
    return (
        ended.token_ids,
        reason.type,
        reason.matched,
        [entry.logprob for entry in ended.logprobs],
        ended.prompt_logprobs,
    )


@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    requests=st.lists(REQUEST, min_size=1, max_size=24),
    together=st.sampled_from([1, 4, 24]),
    overlap=st.booleans(),
    page_size=st.sampled_from([1, 4, 16]),
    capacity=st.sampled_from([144, 320, 4000]),
    chunk=st.sampled_from([None, 16, 64]),
    mixed=st.booleans(),
    policy=st.sampled_from(["fcfs", "lpm"]),
)
def test_each_request_of_a_crowd_gets_what_it_gets_alone(
    harness,
    weighted_script,
    requests,
    together,
    overlap,
    page_size,
    capacity,
    chunk,
    mixed,
    policy,
):
    crowd = harness(
        capacity=capacity,
        page_size=page_size,
        overlap=overlap,
        chunked_prefill_size=chunk,
        enable_mixed_chunk=mixed,
        schedule_policy=policy,
        clip_max_new_tokens=2,  # so that memory runs out
        context_len=100,
        script=weighted_script,
        stop_checker=Numbers(),
    )
    aborts = {}
    for number, request in enumerate(requests):
        prompt, params = made(request, number)
        crowd.add(f"r{number}", prompt, **params)
        if request[-1] is not None:
            aborts.setdefault(number // together + request[-1], []).append(f"r{number}")
        if number % together == together - 1:
            crowd.step()
    aborted = set()
    for step in range(30):
        aborted |= {rid for rid in aborts.get(step, ()) if crowd.scheduler.abort(rid)}
        crowd.step()
    crowd.run()
    for number, request in enumerate(requests):
        prompt, params = made(request, number)
        alone = harness(
            capacity=4000, context_len=100, script=weighted_script, stop_checker=Numbers()
        )
        alone.add("alone", prompt, **params)
        expected = alone.run()["alone"]
        got = crowd.outputs[f"r{number}"]
        if f"r{number}" in aborted:
            assert got.finish_reason.type == "abort"
            assert got.token_ids == expected.token_ids[: len(got.token_ids)]
        else:
            assert told(got) == told(expected)
