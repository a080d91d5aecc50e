"""What is asked of a scheduler beside requests, by a clock that only the tests move."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from phloem.server.control import WaitingFlushes, answer, soonest


class Pretended:
    """A scheduler that some requests use, whose cache has 7 tokens."""

    def __init__(self, num_active):
        self.num_active = num_active
        self.manager = SimpleNamespace(flush=lambda: 7)


class Flushes:
    def __init__(self, num_active):
        self.now = 0.0
        self.scheduler = Pretended(num_active)
        self.told = []
        self.waiting = WaitingFlushes(self.scheduler, lambda: self.now)

    def ask(self, timeout):
        self.waiting.add(timeout, self.told.append)


def test_a_flush_of_a_cache_that_nobody_uses_is_done_at_once():
    f = Flushes(0)
    f.ask(0)
    assert f.told == [7]
    assert f.waiting.due_in() is None


def test_a_flush_without_patience_is_refused_at_once_with_the_number_of_users():
    f = Flushes(3)
    f.ask(0)
    (error,) = f.told
    assert "3 requests use the cache" in str(error)


def test_a_flush_waits_until_the_last_request_has_ended():
    f = Flushes(2)
    f.ask(10)
    f.now = 4
    f.waiting.settle()
    assert (f.told, f.waiting.due_in()) == ([], 6)
    f.scheduler.num_active = 0
    f.waiting.settle()
    assert f.told == [7]


def test_each_flush_gives_up_when_its_own_time_is_over():
    f = Flushes(1)
    f.ask(10)
    f.ask(5)
    assert f.waiting.due_in() == 5
    f.now = 6
    f.waiting.settle()
    assert [type(told) for told in f.told] == [ValueError]
    assert f.waiting.due_in() == 4
    f.now = 20
    assert f.waiting.due_in() == 0
    f.waiting.settle()
    assert len(f.told) == 2
    assert f.waiting.due_in() is None


@pytest.mark.parametrize(
    ("times", "least"), [((), None), ((None, None), None), ((3.0, None, 2.0), 2.0)]
)
def test_the_soonest_of_some_times(times, least):
    assert soonest(*times) == least


def test_an_unknown_action_is_refused_with_those_that_there_are():
    with pytest.raises(ValueError, match="no action 'odd': ask for one of state, "):
        answer(Pretended(0), "odd", {})
