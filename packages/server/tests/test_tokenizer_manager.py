from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from phloem.scheduler import SamplingParams
from phloem.server.compiling import NoCompiler
from phloem.server.frontend import GenerationRequest, ServiceUnavailable
from phloem.server.messages import (
    Abort,
    CompiledConstraint,
    ConstraintUse,
    Control,
    Finish,
    Forget,
    Generate,
    Limits,
    Load,
    Reply,
    TextBatch,
    TextNews,
    Thinking,
)
from phloem.server.running import engine_name
from phloem.server.tokenizer_manager import TokenizerManager


class Sent(list):
    send = list.append


@pytest.fixture
def sent():
    return Sent()


@pytest.fixture
def manager(byte_level, sent):
    return TokenizerManager(byte_level, Limits(100, 100, 300, 1000), NoCompiler(), sent)


def asked(rid="r", **params):
    return GenerationRequest(rid, [1, 2], SamplingParams(**params))


def news(text, finish=None, rid="r"):
    return TextBatch([TextNews(rid, text, [1], finish and Finish(finish), 2, 1, 0)])


async def read(stream):
    return [n.text async for n in stream]


def test_only_parameters_that_are_not_the_default_are_sent(manager, sent):
    manager.start(asked(temperature=0.5, stop=("x",), logit_bias={3: 1.0}))
    manager.start(asked("s"))
    assert sent[0] == Generate(
        "r", [1, 2], {"temperature": 0.5, "stop": ("x",), "logit_bias": {3: 1.0}}
    )
    assert sent[1].sampling_params == {}
    assert (
        SamplingParams.from_dict(sent[0].sampling_params)
        == asked(temperature=0.5, stop=("x",), logit_bias={3: 1.0}).params
    )


def test_a_constraint_is_sent_once_while_requests_name_it_and_forgotten_after_the_last(
    manager, sent
):
    compiled = CompiledConstraint.of(Load("k", "fsm", b"data"), jump_forward=False)
    for rid in ("a", "b"):
        manager.start(replace(asked(rid), constraint=compiled))
    manager.start(asked("free"))
    load, *requests = sent
    assert load == Load("k", "fsm", b"data")
    use = ConstraintUse("k", jump_forward=False)
    assert [request.constraint for request in requests] == [use, use, None]
    for rid in ("a", "free"):
        manager.take(news("x", "stop", rid))
    assert sent == [load, *requests]
    manager.take(news("x", "stop", "b"))
    assert sent[-1] == Forget(["k"])
    manager.start(replace(asked("c"), constraint=compiled))
    assert sent[-2] == load


@pytest.mark.parametrize("wrong", [{"pooling": "max"}, {"timeout": -1}, {"priority": 5}])
def test_a_request_that_is_refused_leaves_no_constraint_behind(manager, sent, wrong):
    compiled = CompiledConstraint.of(Load("k", "fsm", b"data"))
    with pytest.raises(ValueError, match=next(iter(wrong))):
        manager.start(replace(asked("a", max_new_tokens=0), constraint=compiled, **wrong))
    assert sent == []
    manager.start(replace(asked("a"), constraint=compiled))
    manager.take(news("x", "stop", "a"))
    assert [type(message) for message in sent] == [Load, Generate, Forget]


def test_reasoning_alone_is_bound_without_anything_that_is_sent_before(manager, sent):
    use = ConstraintUse("", thinking=Thinking([7], 3))
    bound = CompiledConstraint(None, use)
    manager.start(replace(asked("a"), constraint=bound, shown_ids=(3, 4)))
    manager.take(news("x", "stop", "a"))
    (message,) = sent
    assert (message.constraint, message.shown_ids) == (use, [3, 4])


def test_how_long_and_how_much_of_a_prompt_is_retained_is_sent_along(manager, sent):
    manager.start(replace(asked("a"), retain_seconds=300, retain_tokens=5))
    manager.start(asked("b"))
    assert [(m.retain_seconds, m.retain_tokens) for m in sent] == [(300, 2), (None, None)]
    with pytest.raises(ValueError, match="retain_seconds"):
        manager.start(replace(asked("c"), retain_seconds=-1))


def test_a_stream_gives_what_came_before_and_after_it_was_asked(manager):
    async def run():
        stream = manager.start(asked())
        manager.take(news("a"))
        manager.take(news("b"))
        reading = asyncio.ensure_future(read(stream))
        await asyncio.sleep(0)
        manager.take(news("c"))
        manager.take(news("d", "stop"))
        first = await reading
        return first, await read(stream)

    assert asyncio.run(run()) == (["a", "b", "c", "d"], [])


def test_an_ended_stream_aborts_nothing_when_it_is_closed(manager, sent):
    async def run():
        stream = manager.start(asked())
        manager.take(news("a", "stop"))
        await read(stream)
        stream.close()

    asyncio.run(run())
    assert len(sent) == 1


def test_a_tenant_ends_its_own_requests_only(manager, sent):
    manager.start(replace(asked("a"), tenant="one"))
    manager.start(replace(asked("b"), tenant="two"))
    manager.start(asked("c"))
    del sent[:]
    assert manager.abort("a", "two") == manager.abort("c", "two") == 0
    assert sent == []
    assert manager.abort("a", "one") == manager.abort(None, "two") == 1
    assert manager.abort(None) == 3
    a, b = engine_name("a", "one"), engine_name("b", "two")
    assert sent == [Abort([a]), Abort([b]), Abort([a, b, "c"])]


def test_news_of_a_closed_stream_are_dropped_and_its_id_is_free_after_the_last(manager, sent):
    async def run():
        stream = manager.start(asked())
        manager.take(news("a"))
        stream.close()
        assert sent[1:] == [Abort(["r"])]
        manager.take(news("b"))
        with pytest.raises(ValueError, match="in use"):
            manager.start(asked())
        assert manager.abort("r") == manager.abort(None) == 0
        manager.take(news("", "abort"))
        manager.start(asked())
        return await read(stream)

    assert asyncio.run(run()) == []


def test_a_cancelled_reader_loses_no_news(manager):
    async def run():
        stream = manager.start(asked())
        reading = asyncio.ensure_future(stream.__anext__())
        await asyncio.sleep(0)
        reading.cancel()
        await asyncio.wait([reading])
        manager.take(news("a", "stop"))
        return await read(stream)

    assert asyncio.run(run()) == ["a"]


def test_after_a_failure_a_stream_gives_what_it_has_and_then_raises(manager):
    async def run():
        stream, ended = manager.start(asked()), manager.start(asked("s"))
        manager.take(news("a"))
        manager.take(news("z", "stop", rid="s"))
        manager.fail("it died")
        manager.fail("again")
        manager.take(news("late"))
        assert (await stream.__anext__()).text == "a"
        for _ in range(2):
            with pytest.raises(ServiceUnavailable, match="it died"):
                await stream.__anext__()
        assert await read(ended) == ["z"]
        with pytest.raises(ServiceUnavailable, match="it died"):
            manager.start(asked("t"))

    asyncio.run(run())


def test_replies_find_those_who_asked(manager, sent):
    async def run():
        first, second = (asyncio.ensure_future(c()) for c in (manager.state, manager.flush_cache))
        await asyncio.sleep(0)
        assert [(m.action, type(m)) for m in sent] == [("state", Control), ("flush_cache", Control)]
        manager.take(Reply(sent[1].id, {}, "busy"))
        manager.take(Reply(sent[0].id, {"running": 3}))
        manager.take(Reply(99, {}))
        with pytest.raises(ValueError, match="busy"):
            await second
        return await first

    assert asyncio.run(run()) == {"running": 3}


def test_a_reply_that_comes_too_late_is_dropped(manager, sent):
    async def run():
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(manager.state(), 0.001)
        for message in sent:
            manager.take(Reply(message.id, {}))

    asyncio.run(run())


def test_a_drain_refuses_what_is_new_and_ends_with_the_last_request(manager, sent):
    async def run():
        streams = [manager.start(asked(rid)) for rid in ("r", "s")]
        draining = asyncio.ensure_future(manager.drain(1000))
        await asyncio.sleep(0)
        with pytest.raises(ServiceUnavailable, match="is shutting down") as refused:
            manager.start(asked("new"))
        assert refused.value.retry_after == 1000
        manager.take(news("a", "stop"))
        await asyncio.sleep(0)
        assert not draining.done()
        manager.take(news("b", "stop", "s"))
        await draining
        return [await read(stream) for stream in streams]

    assert asyncio.run(run()) == [["a"], ["b"]]
    assert len(sent) == 2


def test_what_a_drain_does_not_wait_for_is_aborted_and_fails_with_the_reason(manager, sent):
    async def run():
        stream = manager.start(asked())
        await manager.drain(0)
        manager.take(news("a"))
        manager.shut_down()
        assert await stream.__anext__()
        with pytest.raises(ServiceUnavailable, match="is shutting down") as cut_off:
            await stream.__anext__()
        assert cut_off.value.retry_after == 0

    asyncio.run(run())
    assert sent[1:] == [Abort(["r"])]


def test_tenants_have_ids_of_their_own_and_end_only_their_own(manager, sent):
    requests = [replace(asked(), tenant=tenant) for tenant in (None, "one", "two")]
    streams = [manager.start(request) for request in requests]
    with pytest.raises(ValueError, match="request id 'r' is in use"):
        manager.start(requests[1])
    names = [message.rid for message in sent]
    assert len(set(names)) == 3
    manager.take(news("x", rid=names[1]))
    assert (streams[1].ready().rid, streams[0].ready(), streams[2].ready()) == ("r", None, None)
    assert manager.abort("r", "one") == 1
    assert manager.abort(None, "two") == 1
    assert manager.abort("r", None) == manager.abort(None, None) == 1
    assert manager.abort("r", "three") == manager.abort("s") == 0
    aborted = [message.rids for message in sent if isinstance(message, Abort)]
    assert aborted == [[names[1]], [names[2]], [names[0]], [names[0]]]
    assert manager.abort("r") == manager.abort(None) == 3
    for name in names:
        manager.take(news("", "stop", rid=name))
    assert manager.running == manager.abort("r") == 0
    manager.start(requests[1])


def test_who_closes_a_stream_is_told_of_its_last_news(manager):
    told = []
    stream = manager.start(asked())
    stream.close(told.append)
    manager.take(news("x"))
    assert told == []
    manager.take(news("y", "abort"))
    assert [each.finish.type for each in told] == ["abort"]
