"""Who has passed a beat on, by a clock of ours."""

from __future__ import annotations

import asyncio

import pytest

from phloem.server.frontend import ServiceUnavailable
from phloem.server.heartbeat import Heartbeat, Silence
from phloem.server.messages import Beat, Heard


class World:
    def __init__(self):
        self.now = 100.0
        self.sent = []
        self.beats = Heartbeat(self.sent.append, lambda: self.now)


@pytest.fixture
def world():
    return World()


def test_nobody_is_silent_before_the_first_beat(world):
    world.now += 1e6
    assert world.beats.silence is None
    world.beats.check(0)


def test_the_first_process_that_has_not_answered_is_named(world):
    world.beats.beat()
    world.now += 3
    assert world.beats.silence == Silence("scheduler", 3)
    world.beats.take(Heard("scheduler", 1))
    assert world.beats.silence == Silence("detokenizer", 3)
    with pytest.raises(ServiceUnavailable, match=r"the detokenizer process .* for 3\.0 s"):
        world.beats.check(2.5)
    world.beats.check(3)
    world.beats.take(Heard("detokenizer", 1))
    assert world.beats.silence is None


def test_no_beat_follows_one_that_is_under_way(world):
    world.beats.beat()
    world.now += 5
    world.beats.beat()
    assert world.sent == [Beat(1)]
    assert world.beats.silence.seconds == 5
    for process in ("scheduler", "detokenizer"):
        world.beats.take(Heard(process, 1))
    world.beats.beat()
    assert world.sent == [Beat(1), Beat(2)]
    assert world.beats.silence.seconds == 0


def test_an_answer_to_another_beat_is_none(world):
    world.beats.beat()
    world.beats.take(Heard("scheduler", 0))
    assert world.beats.silence.process == "scheduler"


def test_silence_is_logged_once_and_so_is_its_end(world, caplog):
    async def run():
        running = asyncio.ensure_future(world.beats.run(0.004))
        while not world.sent:
            await asyncio.sleep(0)
        world.now += 1
        while not caplog.records:
            await asyncio.sleep(0)
        for process in ("scheduler", "detokenizer"):
            world.beats.take(Heard(process, 1))
        while len(world.sent) < 3:
            for process in ("scheduler", "detokenizer"):
                world.beats.take(Heard(process, len(world.sent)))
            await asyncio.sleep(0)
        running.cancel()

    asyncio.run(run())
    assert [record.getMessage() for record in caplog.records] == [
        "the scheduler process has not answered for 1.0 s",
        "the scheduler process answers again",
    ]
