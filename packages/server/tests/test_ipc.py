from __future__ import annotations

import asyncio
import stat
import tempfile
import threading
from pathlib import Path

import pytest
import zmq

from phloem.server import messages
from phloem.server.ipc import Inbox, Outbox, private_endpoints
from phloem.server.messages import (
    Abort,
    ConstraintUse,
    Control,
    Finish,
    Forget,
    Generate,
    Limits,
    Load,
    Logprobs,
    Ready,
    Reply,
    TextBatch,
    TextNews,
    TextOptions,
    TokenBatch,
    TokenNews,
    ToScheduler,
)

FACTS = messages.EngineFacts("cpu", "cpu", "int8", "float32", "int8", 1 << 20, None, False)
INCOMING = messages.FromScheduler | TextBatch


@pytest.fixture
def endpoints():
    with private_endpoints() as made:
        yield made


@pytest.fixture
def context():
    made = zmq.Context()
    yield made
    made.destroy(linger=0)


@pytest.fixture
def mailbox(endpoints, context):
    """Makes both ends of a mailbox for messages of a kind."""

    def make(kind):
        return Inbox(context, endpoints.frontend, kind), Outbox(context, endpoints.frontend)

    return make


def test_the_folder_of_the_sockets_is_private_and_goes_away():
    with private_endpoints() as endpoints:
        folder = Path(endpoints.folder)
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        addresses = {endpoints.scheduler, endpoints.detokenizer, endpoints.frontend}
        assert len(addresses) == 3
        assert all(a.startswith(f"ipc://{folder}/") for a in addresses)
        (folder / "left").write_text("behind")
    assert not folder.exists()


def test_a_temporary_folder_with_a_long_path_is_not_used(monkeypatch, tmp_path, context):
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    with private_endpoints() as endpoints:
        Inbox(context, endpoints.detokenizer, TokenBatch).close()
    assert list(deep.iterdir()) == []


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (
            ToScheduler,
            Generate("r", [1, 2], {"logit_bias": {5: -1.0}, "stop": ["a"]}, ["t", 1, None]),
        ),
        (
            ToScheduler,
            Generate("r", [1], {}, constraint=ConstraintUse("k", None, True)),
        ),
        (ToScheduler, Load("k", "fsm", b"\0\xff")),
        (ToScheduler, Forget(["k"])),
        (ToScheduler, Abort(["a", "b"])),
        (ToScheduler, Control(7, "state")),
        (INCOMING, Ready(Limits(1, 2, 3, 4), {"import": 0.5}, FACTS, [2])),
        (INCOMING, messages.Failed("no", True)),
        (INCOMING, Reply(7, {"running": 1})),
        (INCOMING, TextBatch([TextNews("r", "ž", [1], Finish("stop", "x"), 1, 2, 3)])),
        (
            TokenBatch,
            TokenBatch(
                [
                    TokenNews("r", [1], None, 1, 1, 0, options=TextOptions(["x"], False)),
                    TokenNews(
                        "s",
                        [],
                        Finish("error", None, "bad", 400),
                        1,
                        0,
                        0,
                        timings={"total": 1.5},
                        prompt_logprobs=Logprobs([None, -1.0], [[(3, -0.5)]]),
                    ),
                ]
            ),
        ),
    ],
)
def test_every_message_arrives_as_it_was_sent(mailbox, kind, message):
    inbox, outbox = mailbox(kind)
    outbox.send(message)
    (arrived,) = inbox.wait()
    if isinstance(arrived, TokenBatch):
        for news in arrived.news:  # pairs are lists on the wire, and tuples again by their type
            assert news.prompt_logprobs is None or news.prompt_logprobs.top == [[(3, -0.5)]]
    assert arrived == message


def test_what_is_sent_before_anybody_listens_arrives(endpoints, context):
    outbox = Outbox(context, endpoints.scheduler)
    for i in range(3):
        outbox.send(Control(i, "ping"))
    inbox = Inbox(context, endpoints.scheduler, ToScheduler)
    arrived = []
    while len(arrived) < 3:
        arrived += inbox.wait()
    assert [m.id for m in arrived] == [0, 1, 2]


def test_taking_does_not_wait(mailbox):
    inbox, _ = mailbox(ToScheduler)
    assert list(inbox.take()) == []


def test_nothing_is_refused_however_much_is_unread(mailbox):
    inbox, outbox = mailbox(ToScheduler)
    for i in range(5000):
        outbox.send(Control(i, "ping"))
    arrived = []
    while len(arrived) < 5000:
        arrived += inbox.wait()
    assert [m.id for m in arrived] == list(range(5000))


def test_a_loop_hears_of_every_message_in_order(mailbox):
    async def listen():
        inbox, outbox = mailbox(ToScheduler)
        outbox.send(Control(0, "ping"))  # before anybody listens
        loop = asyncio.get_running_loop()
        heard, all_there = [], loop.create_future()

        def take(message):
            heard.append(message.id)
            if len(heard) == 301:
                all_there.set_result(None)

        inbox.listen(loop, take)
        await asyncio.sleep(0)
        sender = threading.Thread(
            target=lambda: [outbox.send(Control(i, "ping")) for i in range(1, 301)]
        )
        sender.start()
        await all_there
        sender.join()
        inbox.close(loop)
        return heard

    assert asyncio.run(listen()) == list(range(301))


def test_nobody_is_called_after_closing(mailbox):
    async def listen():
        inbox, outbox = mailbox(ToScheduler)
        outbox.send(Control(0, "ping"))
        loop = asyncio.get_running_loop()
        heard = []
        inbox.listen(loop, heard.append)
        inbox.close(loop)
        await asyncio.sleep(0)
        return heard

    assert asyncio.run(listen()) == []
