"""How many connections there may be, and how long they may take to ask, by a clock of ours."""

from __future__ import annotations

import asyncio
import json

import pytest
import uvicorn
from uvicorn.server import ServerState

from phloem.server.http.connections import (
    MAX_HEAD_BYTES,
    MAX_PIPELINED,
    Connection,
    ConnectionLimits,
    Connections,
)

ASKS = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\n\r\nbody"


class Transport:
    """What the other end of a connection sees."""

    def __init__(self):
        self.sent = b""
        self.closed = self.aborted = self.paused = False
        self.unread = 0

    def get_extra_info(self, name, default=None):
        return default

    def write(self, data):
        self.sent += data

    def close(self):
        self.closed = True

    def abort(self):
        self.closed = self.aborted = True

    def is_closing(self):
        return self.closed

    def get_write_buffer_size(self):
        return self.unread

    def pause_reading(self):
        self.paused = True

    def resume_reading(self):
        self.paused = False

    @property
    def answer(self):
        """The status and the body of the first answer."""
        head, _, body = self.sent.partition(b"\r\n\r\n")
        return int(head.split()[1]), json.loads(body) if body else None


class World:
    """A server's connections, without a network."""

    def __init__(self, **limits):
        self.now = 0.0
        self.guard = Connections(ConnectionLimits(**limits), lambda: self.now)
        self.holds = asyncio.Event()
        """Until it is set, requests are not answered."""
        self.bodies = []
        self.config = uvicorn.Config(
            self._app, log_config=None, lifespan="off", ws="none", interface="asgi3"
        )
        self.config.load()
        self.state = ServerState()

    async def _app(self, scope, receive, send):
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body, more = body + message["body"], message["more_body"]
        self.bodies.append(body)
        await self.holds.wait()
        headers = [(b"content-length", b"2")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"{}"})

    def connect(self, *data):
        connection = Connection(
            self.guard, config=self.config, server_state=self.state, app_state={}
        )
        transport = Transport()
        connection.connection_made(transport)
        for part in data:
            connection.data_received(part)
        return connection, transport

    def after(self, seconds):
        self.now += seconds
        self.guard.sweep()

    async def settle(self):
        for _ in range(10):
            await asyncio.sleep(0)


@pytest.fixture
def in_world():
    """Runs a story in a world with limits; at its end all connections are lost."""

    def run(story, **limits):
        async def told():
            world = World(**limits)
            await story(world)
            world.holds.set()
            await world.settle()
            for connection in list(world.state.connections):
                connection.connection_lost(None)
            await world.settle()
            assert len(world.guard) == 0
            assert not world.state.tasks

        asyncio.run(told())

    return run


def test_a_connection_that_says_nothing_is_closed_without_a_word(in_world):
    async def story(world):
        _, silent = world.connect()
        world.after(9)
        assert not silent.closed
        world.after(1)
        assert (silent.aborted, silent.sent) == (True, b"")
        assert len(world.guard) == 0

    in_world(story, header_timeout=10)


def test_headers_that_drip_do_not_buy_time(in_world):
    async def story(world):
        connection, slow = world.connect()
        world.after(5)
        for byte in b"GET / HTT":
            connection.data_received(bytes([byte]))
            world.after(1)
        assert not slow.closed
        world.after(1)
        assert slow.closed
        status, body = slow.answer
        assert (status, body["error"]["code"]) == (408, "timeout")
        assert b"x-request-id: req_" in slow.sent
        assert b"connection: close" in slow.sent.lower()

    in_world(story, header_timeout=10)


def test_a_body_that_drips_does_not_buy_time_and_its_request_ends(in_world):
    async def story(world):
        connection, slow = world.connect(ASKS[:-4])
        for byte in b"bod":
            connection.data_received(bytes([byte]))
            world.after(9)
        await world.settle()
        assert not slow.closed
        world.after(9)
        assert (slow.answer[0], slow.closed) == (408, True)
        connection.connection_lost(None)
        await world.settle()
        assert not world.state.tasks
        assert world.bodies == []

    in_world(story, header_timeout=10, body_timeout=30)


def test_an_answer_may_take_as_long_as_it_takes(in_world):
    async def story(world):
        _, waits = world.connect(ASKS)
        await world.settle()
        world.after(10_000)
        assert not waits.closed
        world.holds.set()
        await world.settle()
        assert (waits.answer[0], world.bodies) == (200, [b"body"])
        world.after(9)
        assert not waits.closed
        world.after(1)
        assert waits.closed

    in_world(story, header_timeout=10, body_timeout=10)


def test_a_second_request_on_a_connection_has_all_its_time(in_world):
    async def story(world):
        world.holds.set()
        connection, transport = world.connect(ASKS)
        await world.settle()
        world.after(9)
        connection.data_received(ASKS[:10])
        world.after(9)
        assert not transport.closed
        connection.data_received(ASKS[10:])
        await world.settle()
        assert world.bodies == [b"body"] * 2

    in_world(story, header_timeout=10)


def test_pipelined_requests_are_answered_in_their_time(in_world):
    async def story(world):
        _, transport = world.connect(ASKS * 3)
        world.after(1000)
        await world.settle()
        assert not transport.closed
        world.holds.set()
        await world.settle()
        assert transport.sent.count(b"200 OK") == 3
        world.after(10)
        assert transport.closed

    in_world(story, header_timeout=10, body_timeout=10)


def test_a_client_is_not_blamed_while_the_server_does_not_read(in_world):
    async def story(world):
        connection, transport = world.connect(ASKS, ASKS[:-4])
        assert transport.paused
        world.after(100)
        assert not transport.closed
        world.holds.set()
        await world.settle()
        connection.data_received(b"body")
        await world.settle()
        assert len(world.bodies) == 2

    in_world(story, body_timeout=10)


def test_headers_without_end_are_refused(in_world):
    async def story(world):
        for beginning in (b"GET / HTTP/1.1\r\n", b"GET /", b"GET / HTTP/1.1\r\nx: "):
            connection, transport = world.connect(beginning)
            part = b"x: " + b"y" * 1000 + b"\r\n" if beginning.endswith(b"\r\n") else b"y" * 1000
            for _ in range(MAX_HEAD_BYTES // len(part) + 1):
                connection.data_received(part)
            assert (transport.answer[0], transport.closed) == (431, True)

    in_world(story)


def test_headers_without_end_behind_a_request_that_runs_are_refused_too(in_world):
    async def story(world):
        connection, transport = world.connect(ASKS, b"GET / HTTP/1.1\r\n")
        for _ in range(MAX_HEAD_BYTES // 1000 + 1):
            connection.data_received(b"x: " + b"y" * 995 + b"\r\n")
        assert transport.closed
        connection.connection_lost(None)

    in_world(story)


def test_a_body_without_end_is_refused_though_nobody_reads_it(in_world):
    async def story(world):
        connection, transport = world.connect(
            b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        for _ in range(MAX_HEAD_BYTES // 1000 + 3):
            connection.data_received(b"3e8\r\n" + b"y" * 1000 + b"\r\n")
        assert (transport.answer[0], transport.closed) == (413, True)
        connection.connection_lost(None)

    in_world(story, body_bytes=1000)


def test_what_is_no_http_is_told_in_the_apis_form(in_world):
    async def story(world):
        for nonsense in (b"\x16\x03\x01\x02", b"GET\r\n\r\n", b"GET http://[ HTTP/1.1\r\n\r\n"):
            _, transport = world.connect(nonsense)
            status, body = transport.answer
            assert (status, body["error"]["code"]) == (400, "invalid_http")
            assert transport.closed

    in_world(story)


def test_whoever_asked_nothing_for_longest_makes_room(in_world):
    async def story(world):
        silent = [world.connect()[1] for _ in range(3)]
        _, busy = world.connect(ASKS)
        assert [each.closed for each in silent] == [True, False, False]
        for _ in range(100):
            world.connect()
        assert not busy.closed
        assert len(world.guard) <= 4
        world.holds.set()
        await world.settle()
        assert busy.answer[0] == 200

    in_world(story, connections=3)


def test_bodies_that_drip_make_room_too_but_only_where_nobody_is_silent(in_world):
    async def story(world):
        _, drips = world.connect(ASKS[:-1])
        _, silent = world.connect()
        _, busy = world.connect(ASKS)
        assert (silent.closed, drips.closed) == (True, False)
        world.connect(ASKS)
        assert (drips.answer[0], drips.closed, busy.closed) == (503, True, False)
        await world.settle()

    in_world(story, connections=2)


def test_an_answer_on_its_way_is_not_mixed_with_a_refusal(in_world):
    async def story(world):
        connection, transport = world.connect(ASKS, ASKS[:-1])
        await world.settle()
        for _ in range(2 * MAX_HEAD_BYTES // 1000):
            connection.data_received(b"x" * 1000)
        assert (transport.closed, transport.sent) == (True, b"")
        connection.connection_lost(None)

    in_world(story)


def test_where_all_are_busy_one_more_gets_a_503_at_once(in_world):
    async def story(world):
        for _ in range(2):
            world.connect(ASKS)
        _, refused = world.connect(ASKS)
        await world.settle()
        status, body = refused.answer
        assert (status, body["error"]["code"], refused.closed) == (503, "overloaded", True)
        assert b"retry-after: 1" in refused.sent
        assert b"x-request-id: req_" in refused.sent
        world.holds.set()
        await world.settle()
        _, welcome = world.connect(ASKS)
        await world.settle()
        assert welcome.answer[0] == 200

    in_world(story, connections=2)


def test_a_client_that_does_not_read_is_closed_after_a_while(in_world):
    async def story(world):
        connection, deaf = world.connect(ASKS)
        await world.settle()
        deaf.unread = 1 << 16
        connection.pause_writing()
        world.after(59)
        assert not deaf.closed
        world.after(1)
        assert deaf.aborted

    in_world(story, write_timeout=60)


def test_a_client_that_reads_slowly_is_waited_for(in_world):
    async def story(world):
        connection, slow = world.connect(ASKS)
        await world.settle()
        for _ in range(5):
            slow.unread = 1 << 16
            connection.pause_writing()
            world.after(50)
            slow.unread = 1 << 10
            connection.resume_writing()
        world.after(50)
        assert not slow.closed

    in_world(story, write_timeout=60)


def test_an_answer_that_is_read_still_is_not_cut_for_want_of_another_request(in_world):
    async def story(world):
        world.holds.set()
        _, reads = world.connect(ASKS)
        _, deaf = world.connect(ASKS)
        await world.settle()
        assert reads.sent
        assert deaf.sent
        reads.unread = deaf.unread = 1 << 10
        world.after(10)
        assert not reads.closed
        reads.unread = 0
        world.after(60)
        assert (reads.closed, deaf.aborted) == (False, True)
        world.after(10)
        assert reads.closed

    in_world(story, header_timeout=10, write_timeout=60)


PING = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"


def test_who_does_not_read_gives_way_before_who_came_later(in_world):
    async def story(world):
        unread, deaf = world.connect(ASKS)
        await world.settle()
        deaf.unread = 10**6
        unread.pause_writing()
        world.now += 1
        _, fresh = world.connect()
        _, next_one = world.connect()
        assert deaf.aborted
        assert not fresh.closed
        assert not next_one.closed
        assert world.guard.closed == {"overloaded": 1}

    in_world(story, connections=2)


def test_who_is_refused_and_does_not_read_that_is_not_open_for_ever(in_world):
    async def story(world):
        connection, deaf = world.connect()
        deaf.unread = 10**6
        connection.data_received(b"nonsense\r\n\r\n")
        assert deaf.closed
        assert not deaf.aborted
        assert len(world.guard) == 1
        world.after(60)
        assert deaf.aborted
        assert len(world.guard) == 0

    in_world(story, write_timeout=60)


def test_requests_that_are_sent_ahead_without_end_end_the_connection(in_world):
    async def story(world):
        _, allowed = world.connect(PING * (MAX_PIPELINED + 1))
        _, greedy = world.connect(PING * (MAX_PIPELINED + 2))
        assert (allowed.closed, greedy.closed) == (False, True)

    in_world(story)


def test_a_client_that_leaves_ends_the_answer_that_runs_and_not_only_the_newest(in_world):
    async def story(world):
        connection, _ = world.connect(PING * 3)
        await world.settle()
        running = connection._answering
        connection.connection_lost(None)
        assert running.disconnected
        assert running is not connection.cycle

    in_world(story)
