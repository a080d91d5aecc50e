"""Malformed and random requests, as `scripts/fuzz_http.py` makes them, to `phloem serve`."""

from __future__ import annotations

import itertools

import psutil
import pytest
from repository_scripts import load_script

from phloem.server.background import running_server
from phloem.server.config import ServerArgs
from phloem.server.http_config import HttpArgs

REQUESTS = 1_000
MOST_MIB = 24
"""By which memory may grow in the second half of the requests."""


@pytest.fixture(scope="module")
def fuzz():
    return load_script("fuzz_http")


@pytest.fixture(scope="module")
def server(write_script):
    output = "hello there, and so on. " * 60
    script = write_script([{"prompt_ids": [], "output": output}], context_length=256)
    with running_server(
        ServerArgs(model=script), HttpArgs(port=0, served_model_name="tiny")
    ) as running:
        yield running


@pytest.fixture(scope="module")
def fuzzing(fuzz, server):
    return fuzz.Fuzzing(server.url)


@pytest.fixture(autouse=True)
def unharmed(fuzzing, server):
    """Whatever was sent: nothing was wrong, nothing is held, and the next request is served."""
    yield
    assert fuzzing.complaints == []
    assert fuzzing.leaked() == {}
    assert server.process.poll() is None


def test_the_requests_that_others_are_made_of_are_served(fuzz, fuzzing):
    for path, body in fuzz.BODIES.items():
        fuzzing.send(fuzz.Case("POST", path, {}, fuzz.encoded(body)))
    assert fuzzing.counts == {200: len(fuzz.BODIES)}


def test_what_is_wrong_anywhere_is_refused_and_memory_stays_flat(fuzz, fuzzing, server):
    process = psutil.Process(server.process.pid)
    cases = fuzz.random_cases(seed=8)
    memory = []
    for _ in range(2):
        for case in itertools.islice(cases, REQUESTS // 2):
            fuzzing.send(case)
        memory.append(fuzz.resident_mib(process))
    assert memory[1] < memory[0] + MOST_MIB


def test_each_field_is_refused_some_junk(fuzz, fuzzing):
    """Two or so each; the script sends all."""
    for case in itertools.islice(fuzz.field_cases(fuzzing.fields()), 0, None, 37):
        fuzzing.send(case)


def test_what_is_hardly_http_is_refused(fuzzing):
    fuzzing.send_wire()
