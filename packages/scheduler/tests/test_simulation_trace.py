"""Traces: their form as JSON lines, the ids that stand for prompts, and those that are bundled."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest

from phloem.scheduler.simulation import bundled_names, bundled_trace, read_trace, write_trace
from phloem.scheduler.simulation.trace import output_token, prompt_ids


def read(*lines):
    return read_trace([json.dumps(line) for line in lines], "t.jsonl")


def runs(*pairs):
    return [{"group": group, "tokens": tokens} for group, tokens in pairs]


def shared(one, other):
    """Leading tokens that two prompts have in common."""
    a, b = prompt_ids(one), prompt_ids(other)
    n = min(len(a), len(b))
    differ = np.flatnonzero(a[:n] != b[:n])
    return int(differ[0]) if len(differ) else n


def test_prompts_share_a_prefix_as_far_as_their_groups_are_the_same():
    one, two, three, four = read(
        {"prompt": runs(("system", 10), ("a", 5)), "output": 3},
        {"prompt": runs(("system", 10), ("b", 5)), "output": 3},
        {"prompt": runs(("system", 7), ("a", 5)), "output": 3},
        {"prompt": runs(("system", 10), ("a", 20)), "output": 3},
    ).requests
    assert [one.num_prompt, three.num_prompt] == [15, 12]
    assert (shared(one, two), shared(one, three), shared(one, four)) == (10, 7, 15)


def test_an_output_continues_the_last_group_so_that_a_next_turn_finds_it():
    first, second = read(
        {"prompt": runs(("system", 10), ("chat", 5)), "output": 3},
        {"prompt": runs(("system", 10), ("chat", 12)), "output": 3},
    ).requests
    said = np.append(prompt_ids(first), [output_token(first, 0)] * first.output)
    assert np.array_equal(prompt_ids(second)[: len(said)], said)


def test_outputs_of_prompts_given_as_ids_share_nothing():
    one, two = read({"prompt": [1, 2, 3], "output": 2}, {"prompt": [1, 2, 3], "output": 2}).requests
    assert prompt_ids(one).tolist() == [1, 2, 3]
    assert output_token(one, 0) != output_token(two, 1)


def test_a_request_may_follow_an_earlier_one():
    trace = read(
        {"id": "x", "arrival": 1.5, "prompt": [1], "output": 1},
        {"prompt": [1, 2], "output": 1, "after": "x", "delay": 2, "max_tokens": 9, "tenant": "t"},
    )
    assert trace.requests[0].arrival == 1.5
    assert (trace.requests[1].after, trace.requests[1].delay) == (0, 2.0)
    assert (trace.requests[1].allowed, trace.requests[1].tenant) == (9, "t")
    assert trace.longest == 11


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("[1]", "no JSON object"),
        ("{", "line 1"),
        ('{"output": 1}', "prompt is missing"),
        ('{"prompt": [], "output": 1}', "prompt is missing or empty"),
        ('{"prompt": [1.5], "output": 1}', "a token id is 1.5"),
        ('{"prompt": [-1], "output": 1}', "ids from -1"),
        ('{"prompt": [{"group": "a"}], "output": 1}', "is no run"),
        ('{"prompt": [{"group": "a", "tokens": 0}], "output": 1}', "tokens is 0"),
        ('{"prompt": [1], "output": 0}', "output is 0"),
        ('{"prompt": [1], "output": 3, "max_tokens": 2}', "output 3 is more than max_tokens 2"),
        ('{"prompt": [1], "output": 1, "arrival": -1}', "arrival is -1"),
        ('{"prompt": [1], "output": 1, "after": "y"}', "after 'y' is the id of no earlier line"),
        ('{"prompt": [1], "output": 1, "ouput": 1}', "'ouput' is unknown"),
        ('{"prompt": [1], "output": 1, "priority": "high"}', "priority is 'high'"),
    ],
)
def test_a_bad_line_is_named_with_what_is_wrong(line, says):
    with pytest.raises(ValueError, match=r"t\.jsonl, line 1") as error:
        read_trace([line], "t.jsonl")
    assert says in str(error.value)


def test_an_empty_trace_is_refused():
    with pytest.raises(ValueError, match="has no requests"):
        read_trace(["", " \n"], "t.jsonl")


@pytest.mark.parametrize("name", bundled_names())
def test_a_bundled_trace_is_the_same_each_time_and_after_a_file(name):
    spec = f"{name}:seed=3" if name == "w4" else f"{name}:requests=60,seed=3"
    trace = bundled_trace(spec)
    assert trace == bundled_trace(spec)
    assert len(trace) == (32 if name == "w4" else 60)
    file = io.StringIO()
    write_trace(trace, file)
    again = read_trace(file.getvalue().splitlines(), spec)
    for one, other in zip(trace.requests, again.requests, strict=True):
        assert one.num_prompt == other.num_prompt
        for name in ("arrival", "output", "allowed", "after", "delay", "tenant"):
            assert getattr(one, name) == getattr(other, name)
    first = trace.requests[0], again.requests[0]
    assert [shared(first[0], r) for r in trace.requests] == [
        shared(first[1], r) for r in again.requests
    ]


def test_a_bundled_trace_has_100_000_requests_unless_told_otherwise():
    assert len(bundled_trace("shared-prefix")) == 100_000


def test_other_seeds_give_other_traces():
    assert bundled_trace("mixed:requests=50") != bundled_trace("mixed:requests=50,seed=1")


def test_the_parts_of_the_mixed_trace_share_no_groups():
    groups = {}
    for request in bundled_trace("mixed:requests=200").requests:
        for group, _ in request.prompt:
            groups.setdefault(group, set()).add(request.tenant)
    assert all(len(tenants) == 1 for tenants in groups.values())
    assert {name for tenants in groups.values() for name in tenants} == {
        *("chat", "agents", "texts", "documents")
    }


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("w9", "no trace 'w9'"),
        ("mixed:speed=2", "has no 'speed': it has requests, rate, seed"),
        ("mixed:requests=many", "is no int"),
        ("mixed:rate=0", "give more than 0"),
    ],
)
def test_a_bad_specification_is_refused(spec, says):
    with pytest.raises(ValueError, match=says):
        bundled_trace(spec)
