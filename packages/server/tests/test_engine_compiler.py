"""Constraints compiled for an engine's callers: side by side, and given up when nobody waits."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future

import pytest

from phloem.grammar import Constraint, GrammarError
from phloem.grammar.service import CompiledConstraint
from phloem.server.constraints import BadConstraint, ConstraintRequest
from phloem.server.engine_compiler import EngineCompiler


def asked(pattern):
    return ConstraintRequest(Constraint.regex(pattern), "regex")


def done(result=None):
    future = Future()
    future.set_result(result)
    return future


class Grammars:
    """Has a vocabulary at once, if it is given no other future, and loads everything."""

    def __init__(self, vocabulary=None):
        self.vocabulary = vocabulary or done("vocabulary")
        self.loaded = []

    def prepare(self):
        return self.vocabulary

    def load(self, compiled):
        self.loaded.append(compiled.key)
        return done()


class Service:
    """Compiles what it is told to, when it is."""

    def __init__(self):
        self.futures = {}
        self.all_asked = threading.Event()

    def submit(self, constraint):
        future = self.futures[constraint.source] = Future()
        if len(self.futures) == 2:
            self.all_asked.set()
        return future

    def finish(self, pattern):
        self.futures[pattern].set_result(CompiledConstraint(pattern, "fsm", b""))

    def cancelled(self):
        return [pattern for pattern, future in self.futures.items() if future.cancelled()]


@pytest.fixture
def service():
    return Service()


@pytest.fixture
def compiler(service):
    return EngineCompiler(Grammars(), lambda vocabulary: service)


def keys(compiled):
    return [each and each.load.key for each in compiled]


WANTED = [asked("a"), None, asked("b"), asked("a")]


def test_a_call_has_its_constraints_compiled_side_by_side(service, compiler):
    found = []
    thread = threading.Thread(target=lambda: found.append(compiler.compile_all(WANTED)))
    thread.start()
    assert service.all_asked.wait(20), "the second is asked for before the first is there"
    service.finish("b")
    service.finish("a")
    thread.join()
    assert keys(found[0]) == ["a", None, "b", "a"]


def test_an_error_gives_the_others_up(service, compiler):
    def refuse():
        service.all_asked.wait(20)
        service.futures["a"].set_exception(GrammarError("it is wrong"))

    thread = threading.Thread(target=refuse)
    thread.start()
    with pytest.raises(BadConstraint, match="regex: it is wrong"):
        compiler.compile_all(WANTED)
    thread.join()
    assert service.cancelled() == ["b"]


async def settle():
    for _ in range(10):
        await asyncio.sleep(0)


def test_a_task_has_its_constraints_compiled_side_by_side(service, compiler):
    async def run():
        task = asyncio.ensure_future(compiler.compile_all_async(WANTED))
        await settle()
        for pattern in ("b", "a"):
            service.finish(pattern)
        return await task

    assert keys(asyncio.run(run())) == ["a", None, "b", "a"]


def test_a_task_that_is_cancelled_gives_up_what_is_compiled_for_it(service, compiler):
    async def run():
        task = asyncio.ensure_future(compiler.compile_all_async(WANTED))
        await settle()
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()

    asyncio.run(run())
    assert service.cancelled() == ["a", "b"]


def test_a_task_that_is_refused_gives_the_others_up(service, compiler):
    async def run():
        task = asyncio.ensure_future(compiler.compile_all_async(WANTED))
        await settle()
        service.futures["b"].set_exception(GrammarError("it is wrong"))
        with pytest.raises(BadConstraint, match="regex: it is wrong"):
            await task

    asyncio.run(run())
    assert service.cancelled() == ["a"]


def test_who_leaves_before_the_vocabulary_is_there_does_not_end_it_for_others(service):
    vocabulary = Future()
    compiler = EngineCompiler(Grammars(vocabulary), lambda vocabulary: service)

    async def run():
        first, second = (
            asyncio.ensure_future(compiler.compile_all_async([asked("a")])) for _ in range(2)
        )
        await settle()
        first.cancel()
        await asyncio.wait([first])
        vocabulary.set_result("vocabulary")
        await settle()
        service.finish("a")
        return await second

    assert keys(asyncio.run(run())) == ["a"]


def test_nothing_is_started_where_nothing_is_asked_for():
    def fail(vocabulary):
        raise AssertionError("a service was made")

    compiler = EngineCompiler(Grammars(Future()), fail)
    assert compiler.compile_all([None, None]) == [None, None]
    assert asyncio.run(compiler.compile_all_async([None])) == [None]


@pytest.mark.parametrize("closed", [False, True])
def test_an_engine_that_compiles_nothing_says_so(service, closed):
    compiler = EngineCompiler(Grammars() if closed else None, lambda vocabulary: service)
    compiler.close()
    for attempt in (compiler.compile_all, lambda a: asyncio.run(compiler.compile_all_async(a))):
        with pytest.raises(RuntimeError if closed else BadConstraint):
            attempt([asked("a")])
    assert not service.futures
