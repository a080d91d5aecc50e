"""Large bodies are read in a process apart, as small ones are here, while the loop goes on."""

from __future__ import annotations

import asyncio
import os
import signal

import msgspec
import pytest

from phloem.server.bodies import reader as reader_module
from phloem.server.bodies.decoding import MOST_CONTAINERS, BadBody
from phloem.server.bodies.reader import SMALL, BodyReader, read_here, takes_long
from phloem.server.bodies.worker import FAILURE, Task, _or_failure
from phloem.server.constraints import ConstraintRequest, constraint_of
from phloem.server.frontend import ServiceUnavailable

TASK = Task(most_entries=30_000)
PAD = "x" * (1 << 20)
SCHEMA = {"enum": [f"value {n}" for n in range(20_000)]}


def encoded(**content):
    return msgspec.json.encode(content)


def read(*bodies, task=TASK):
    """What a reader makes of each body, and how often the loop had its turn meanwhile."""

    async def result(reader, body):
        try:
            return await reader.read([body[:1000], body[1000:]], task)
        except BadBody as error:
            return told(error)

    async def all_of_them():
        turns = 0

        async def count():
            nonlocal turns
            while True:
                await asyncio.sleep(0)
                turns += 1

        counting = asyncio.ensure_future(count())
        async with BodyReader() as reader:
            results = [await result(reader, body) for body in bodies]
        counting.cancel()
        return results, turns

    return asyncio.run(all_of_them())


def told(error):
    return str(error), error.param, error.code


GOOD = (
    encoded(prompt=PAD + PAD, n=1),
    encoded(messages=[{"role": "user", "content": "hi"}] * 20_000),
    encoded(ids=[list(range(5000))] * 20, texts=["é\n" * 30_000] * 3, empty={}, none=None),
    encoded(prompt=PAD, metadata={f"{n}" * 20_000: n for n in range(5)}, **{"k" * 40_000: None}),
    encoded(prompt=PAD, **{"k" * 40_000: []}),
    b'{"deep": ' + b"[" * 800 + b"]" * 800 + b"," + encoded(prompt=PAD)[1:],
)


def test_large_bodies_come_out_as_if_they_were_read_here():
    results, turns = read(*GOOD)
    assert results == [read_here(body, TASK) for body in GOOD]
    # Between pieces, of which there are more than a hundred.
    assert turns > 100


BAD = (
    b"[" + encoded(prompt=PAD) + b"]",
    encoded(prompt=PAD)[:-1],
    encoded(prompt=PAD) + b" x",
    b'{"a": "\\ud800", ' + encoded(prompt=PAD)[1:],
    b'{"prompt": "' + PAD.encode() + b'\xff"}',
    b'{"a": ' + b"[" * 600_000,
    b'{"a": ' + b"[" * 990 + b"]" * 990 + b"," + encoded(prompt=PAD)[1:],
    encoded(choices=["x"] * 300_000),
    msgspec.json.encode({f"{PAD[:5000]}{n}": n for n in range(257)}),
)


def test_refusals_are_those_of_small_bodies():
    here = []
    for body in BAD:
        assert takes_long(body)
        with pytest.raises(BadBody) as caught:
            read_here(body, TASK)
        here.append(told(caught.value))
    results, _ = read(*BAD, GOOD[0])
    assert results == [*here, read_here(GOOD[0], TASK)]  # the process has gone on


def test_what_has_no_end_of_lists_is_refused_wherever_they_are():
    bodies = [
        encoded(prompt=PAD, metadata={"x": [[]] * MOST_CONTAINERS}),
        encoded(prompt=PAD, metadata={"x": [{"y": {str(n): [n]}} for n in range(80_000)]}),
    ]
    results, _ = read(*bodies, encoded(prompt=PAD, metadata={"x": [[]] * (MOST_CONTAINERS - 100)}))
    for message, _, _ in results[:2]:
        assert f"more than {MOST_CONTAINERS} lists and objects" in message
    assert len(results[2]["metadata"]["x"]) == MOST_CONTAINERS - 100


def test_only_so_much_waits(monkeypatch):
    monkeypatch.setattr(reader_module, "_MOST_HELD", int(2.5 * len(PAD)))

    async def read_them():
        async with BodyReader() as reader:
            body = encoded(prompt=PAD)
            some = [asyncio.ensure_future(reader.read([body], TASK)) for _ in range(2)]
            await asyncio.sleep(0)
            with pytest.raises(ServiceUnavailable, match="wait"):
                await reader.read([body], TASK)
            assert await asyncio.gather(*some) == [{"prompt": PAD}] * 2
            # One alone is read, however large.
            assert await reader.read([GOOD[0]], TASK) == read_here(GOOD[0], TASK)

    asyncio.run(read_them())


def test_a_process_that_gets_nowhere_is_replaced(monkeypatch):
    async def read_them():
        async with BodyReader() as reader:
            await reader.read([GOOD[0]], TASK)
            with monkeypatch.context() as patched:
                patched.setattr(reader_module, "_MOST_SECONDS", 0.2)
                os.kill(reader.pid, signal.SIGSTOP)
                with pytest.raises(ServiceUnavailable, match="send less"):
                    await reader.read([GOOD[0]], TASK)
            assert await reader.read([GOOD[0]], TASK) == read_here(GOOD[0], TASK)

    asyncio.run(read_them())


def test_what_the_process_cannot_do_is_told_as_its_own_failure(capsys):
    def pieces():
        yield b"e{}"
        raise ZeroDivisionError

    assert [*_or_failure(pieces())] == [b"e{}", FAILURE]
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_bodies_that_take_no_time_need_no_process():
    async def read_them():
        async with BodyReader() as reader:
            await reader.read([encoded(prompt="x" * SMALL)], TASK)
            await reader.read([b'{"a":[', b"[]," * 5000, b"[]]}"], TASK)
            return reader.pid

    assert asyncio.run(read_them()) is None
    assert takes_long(b'{"a":[' + b"[]," * 20_000 + b"[]]}")


def test_large_constraints_are_made_there():
    task = Task(30_000, "request", "compact")
    native_task = Task(30_000, "sampling_params", "compact")
    options = {"steering": True}
    asked = constraint_of({"json_schema": SCHEMA}, options, "compact")
    body = encoded(prompt=PAD, json_schema=SCHEMA, regex=None, grammar_options=options)
    native = encoded(text=PAD, sampling_params=[{"json_schema": SCHEMA, "n": 2}, {"regex": "a"}])
    (first, beside), _ = read(body, native, task=task)
    assert first == {"prompt": PAD, "json_schema": asked, "grammar_options": options}
    assert beside == read_here(native, TASK)
    (second,), _ = read(native, task=native_task)
    made, small = second["sampling_params"]
    assert isinstance(made["json_schema"], ConstraintRequest)
    assert made["json_schema"].constraint == asked.constraint
    assert (made["n"], small) == (2, {"regex": "a"})


def test_constraints_that_cannot_be_made_are_refused_by_their_field():
    large = encoded(prompt=PAD, json_schema={"enum": [PAD, PAD]})
    two = encoded(prompt=PAD, choices=[PAD], regex="a")
    native = encoded(text=PAD, sampling_params={"structural_tag": [PAD]})
    results, _ = read(large, two, task=Task(30_000, "request"))
    results += read(native, task=Task(30_000, "sampling_params"))[0]
    assert [param for _, param, _ in results] == ["json_schema", "choices", "structural_tag"]
    assert {code for _, _, code in results} == {"invalid_constraint"}


def test_after_the_process_died_there_is_another():
    async def read_them():
        async with BodyReader() as reader:
            await reader.read([GOOD[0]], TASK)
            first = reader.pid
            os.kill(first, signal.SIGKILL)
            with pytest.raises(ServiceUnavailable):
                await reader.read([GOOD[0]], TASK)
            assert await reader.read([GOOD[0]], TASK) == read_here(GOOD[0], TASK)
            assert reader.pid != first

    asyncio.run(read_them())


def test_who_gives_up_does_not_leave_its_answer_to_the_next():
    async def read_them():
        async with BodyReader() as reader:
            given_up = asyncio.ensure_future(reader.read([GOOD[1]], TASK))
            while reader.pid is None:
                await asyncio.sleep(0)
            given_up.cancel()
            with pytest.raises(asyncio.CancelledError):
                await given_up
            assert await reader.read([GOOD[0]], TASK) == read_here(GOOD[0], TASK)

    asyncio.run(read_them())


def test_the_process_ends_with_its_reader():
    async def pid_of_it():
        async with BodyReader() as reader:
            await reader.read([GOOD[0]], TASK)
            return reader.pid

    pid = asyncio.run(pid_of_it())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
