"""Whose turn it is at the workers of the compile service."""

from __future__ import annotations

import pytest

from phloem.grammar.service import Limits, Overloaded
from phloem.grammar.service.turns import Job, Turns


def turns_of(**limits) -> Turns:
    return Turns(Limits(**limits))


def added(turns: Turns, count: int, owner: str = "") -> list[Job]:
    jobs = [Job(None, owner) for _ in range(count)]
    for job in jobs:
        turns.add(job)
    return jobs


def running_long(turns: Turns, count: int) -> list[Job]:
    jobs = added(turns, count)
    for job in jobs:
        assert turns.take() is job
        turns.lengthen(job)
    return jobs


def yield_turn(turns: Turns, job: Job) -> None:
    """What the pool does when the worker of a preempted job has ended."""
    turns.end(job)
    job.preempted = False
    turns.add(job)


def test_new_jobs_come_in_their_order():
    turns = turns_of()
    jobs = added(turns, 3)
    assert [turns.take() for _ in range(4)] == [*jobs, None]


def test_long_jobs_go_on_while_nobody_waits():
    turns = turns_of(workers=3)
    running_long(turns, 3)
    assert turns.preempt() == []


def test_the_last_that_became_long_makes_room_for_one_that_waits_and_only_once():
    turns = turns_of(workers=3)
    first, second, third = added(turns, 3)
    for _ in range(3):
        turns.take()
    for job in (third, first, second):
        turns.lengthen(job)
    added(turns, 2)
    assert turns.preempt() == [second]
    assert turns.preempt() == []


def test_as_many_make_room_as_wait():
    turns = turns_of(workers=4)
    first, *_ = running_long(turns, 2)
    added(turns, 2)
    assert turns.preempt() == [], "two workers are free"
    for _ in range(2):
        turns.lengthen(turns.take())
    added(turns, 1)
    (gone,) = turns.preempt()
    assert gone is not first
    turns.end(gone)


def test_a_job_that_made_room_waits_for_another_long_one_to_end():
    turns = turns_of(workers=2)
    stays, goes = running_long(turns, 2)
    (new,) = added(turns, 1)
    assert turns.preempt() == [goes]
    yield_turn(turns, goes)
    assert turns.take() is new
    turns.end(new)
    assert turns.take() is None, "a worker is kept for new ones"
    turns.end(stays)
    assert turns.take() is goes
    added(turns, 1)
    turns.take()
    added(turns, 3)
    assert turns.preempt() == []


def test_new_ones_do_not_hold_up_long_ones_for_ever():
    turns = turns_of(workers=2)
    stays, goes = running_long(turns, 2)
    new = added(turns, 3)
    turns.preempt()
    yield_turn(turns, goes)
    turns.end(stays)
    assert turns.take() is goes
    assert turns.take() is new[0]


def test_the_only_worker_does_long_ones_to_the_end():
    turns = turns_of(workers=1)
    running_long(turns, 1)
    added(turns, 2)
    assert turns.preempt() == []


def test_who_tries_again_is_next():
    turns = turns_of(workers=1)
    first, second = added(turns, 2)
    turns.end(turns.take())
    turns.add_again(first)
    assert [turns.take(), turns.take()] == [first, second]


def test_only_so_many_wait_beyond_those_that_find_a_worker_free():
    turns = turns_of(workers=2, waiting=1)
    added(turns, 3)
    with pytest.raises(Overloaded):
        added(turns, 1)
    turns.take()
    with pytest.raises(Overloaded):
        added(turns, 1)


def test_only_so_many_wait_that_made_room_and_they_take_no_place_of_new_ones():
    turns = turns_of(workers=2, waiting=1, waiting_long=1)
    running_long(turns, 2)
    for refused in (False, True):
        (new,) = added(turns, 1)
        (gone,) = turns.preempt()
        if refused:
            with pytest.raises(Overloaded):
                yield_turn(turns, gone)
        else:
            yield_turn(turns, gone)
        assert turns.take() is new
        turns.lengthen(new)


def test_who_leaves_waits_no_longer():
    turns = turns_of(workers=1)
    first, second = added(turns, 2)
    turns.drop(first)
    turns.drop(first)
    assert turns.take() is second
    assert turns.jobs == [second]


def test_owners_have_their_turns_one_after_the_other():
    turns = turns_of(workers=1)
    many, one, two = (added(turns, count, owner) for owner, count in zip("abc", (4, 1, 2)))
    expected = [many[0], one[0], two[0], many[1], two[1], many[2], many[3]]
    assert turns.jobs[: len(many)] == many
    assert [turns.take() for _ in range(8)] == [*expected, None]


def test_so_do_the_owners_of_long_ones():
    turns = turns_of(workers=3)
    long = [*added(turns, 3, "a"), *added(turns, 1, "b")]
    for job in long:
        job.long = True
        turns.drop(job)
        turns.add(job)
    first, second = turns.take(), turns.take()
    assert [first, second, turns.take()] == [long[0], long[3], None]
    turns.end(first)
    assert turns.take() is long[1]


def test_who_tries_again_is_next_though_it_was_the_turn_of_another():
    turns = turns_of(workers=1)
    first, *_ = added(turns, 2, "a")
    other, *_ = added(turns, 1, "b")
    turns.end(turns.take())
    turns.add_again(first)
    assert [turns.take(), turns.take()] == [first, other]


def test_who_fills_the_queue_leaves_others_their_share_of_it():
    turns = turns_of(workers=1, waiting=3)
    added(turns, 4, "a")
    added(turns, 2, "b")
    for owner in "ab":
        with pytest.raises(Overloaded):
            added(turns, 1, owner)
    added(turns, 1, "c")


def test_an_owner_who_leaves_has_no_turn():
    turns = turns_of(workers=1)
    (gone,) = added(turns, 1, "a")
    (stays,) = added(turns, 1, "b")
    turns.drop(gone)
    assert [turns.take(), turns.take()] == [stays, None]
