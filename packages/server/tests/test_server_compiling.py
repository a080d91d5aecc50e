"""Compiling for clients that wait, over a service that pretends."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future

import pytest

from phloem.grammar import Constraint, GrammarError, UnsupportedConstraint
from phloem.grammar.service import (
    BackendSupport,
    CompiledConstraint,
    Overloaded,
    ServiceStats,
    SupportReport,
)
from phloem.server.compiling import (
    BACKENDS,
    NoCompiler,
    ServiceCompiler,
    asked_backends,
    make_compiler,
)
from phloem.server.config import ServerArgs
from phloem.server.constraints import BadConstraint, ConstraintRequest
from phloem.server.frontend import ServiceUnavailable
from phloem.server.messages import ConstraintUse, Load

ASKED = ConstraintRequest(Constraint.regex("a"), "guided_regex", False, True)


class FakeService:
    """Answers with what it is given: a result, an exception, or nothing yet."""

    def __init__(self, answer=None, supporting=()):
        self.answer = answer
        self.supporting = supporting
        self.backends = []
        self.futures = []
        self.asked = []
        self.closed = False
        self.stats = ServiceStats(1, 2, 3, 4)

    def submit(self, constraint, owner):
        self.asked.append(constraint)
        future = Future()
        self.futures.append(future)
        if isinstance(self.answer, Exception):
            future.set_exception(self.answer)
        elif self.answer is not None:
            future.set_result(self.answer)
        return future

    def check(self, constraint, backends, owner):
        (backend,) = backends
        self.backends.append(backend)
        future = Future()
        future.set_result(SupportReport((BackendSupport(backend, backend in self.supporting),)))
        return future

    def close(self):
        self.closed = True


def run(service, use):
    compiler = ServiceCompiler(lambda: service, "fsm", "bounded")
    try:
        return asyncio.run(use(compiler))
    finally:
        compiler.close()
        assert service.closed


def test_what_is_compiled_goes_with_how_it_is_to_be_followed():
    service = FakeService(CompiledConstraint("k", "fsm", b"d"))
    made = run(service, lambda compiler: compiler.compile(ASKED))
    assert made.load == Load("k", "fsm", b"d")
    assert made.use == ConstraintUse("k", jump_forward=False, steering=True)
    assert service.asked == [ASKED.constraint]


@pytest.mark.parametrize(
    "error", [GrammarError("it is wrong"), UnsupportedConstraint("3", "(?=", "it looks ahead")]
)
def test_what_is_wrong_with_a_constraint_is_told_with_its_field(error):
    with pytest.raises(BadConstraint) as caught:
        run(FakeService(error), lambda compiler: compiler.compile(ASKED))
    assert caught.value.field == "guided_regex"
    assert str(caught.value) == f"guided_regex: {error}"


def test_a_service_that_has_no_workers_is_unavailable():
    with pytest.raises(ServiceUnavailable):
        run(FakeService(RuntimeError("no processes")), lambda compiler: compiler.compile(ASKED))


def test_a_service_with_too_much_to_do_is_unavailable_for_a_while():
    with pytest.raises(ServiceUnavailable, match="try again later") as caught:
        run(FakeService(Overloaded("9 wait")), lambda compiler: compiler.compile(ASKED))
    assert caught.value.retry_after


def test_who_leaves_cancels_the_work():
    service = FakeService()

    async def leave(compiler):
        waiting = asyncio.ensure_future(compiler.compile(ASKED))
        while not service.futures:
            await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        return service.futures[0].cancelled()

    assert run(service, leave)


def test_who_leaves_while_the_service_is_made_does_not_end_it_for_others():
    go_on = threading.Event()
    service = FakeService(CompiledConstraint("k", "fsm", b"d"))

    def make():
        go_on.wait()
        return service

    async def use(compiler):
        assert compiler.stats() == {}
        first, second = (asyncio.ensure_future(compiler.compile(ASKED)) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.wait([first])
        go_on.set()
        return await second

    compiler = ServiceCompiler(make, "fsm", "bounded")
    assert asyncio.run(use(compiler)).load.key == "k"
    compiler.close()


def test_without_a_vocabulary_constraints_are_refused():
    def make():
        raise GrammarError("the tokenizer does not spell texts in bytes")

    compiler = ServiceCompiler(make, "fsm", "bounded")
    with pytest.raises(BadConstraint, match="in bytes"):
        asyncio.run(compiler.compile(ASKED))
    assert compiler.stats() == {}
    compiler.close()


@pytest.mark.parametrize(
    ("backend", "supporting", "asked"),
    [
        (None, ["fsm", "xgrammar"], ["fsm"]),
        ("xgrammar", ["fsm"], ["xgrammar"]),
        ("auto", ["fsm", "llguidance"], ["fsm"]),
        ("auto", ["llguidance"], ["fsm", "llguidance"]),
        ("auto", [], list(BACKENDS)),
    ],
)
def test_backends_are_asked_until_one_supports_the_constraint(backend, supporting, asked):
    service = FakeService(supporting=supporting)
    report = run(service, lambda compiler: compiler.check(ASKED, backend))
    assert [each["backend"] for each in report["backends"]] == service.backends == asked
    assert report["supported"] is (asked[-1] in supporting)


def test_nobody_else_is_asked_about_what_is_malformed_or_too_complex():
    class Refusing(FakeService):
        def check(self, constraint, backends, owner):
            super().check(constraint, backends, owner)
            future = Future()
            future.set_result(SupportReport((BackendSupport(*backends, False, final=True),)))
            return future

    service = Refusing(supporting=BACKENDS)
    report = run(service, lambda compiler: compiler.check(ASKED, "auto"))
    assert report["supported"] is False
    assert service.backends == [BACKENDS[0]]


def test_a_server_with_a_backend_of_its_own_asks_that():
    service = FakeService(supporting=["mine:create"])
    compiler = ServiceCompiler(lambda: service, "mine:create", "bounded")
    assert asyncio.run(compiler.check(ASKED, None))["supported"]
    assert service.backends == ["mine:create"]
    compiler.close()


@pytest.mark.parametrize("name", ["none", "os:system", ""])
def test_only_backends_that_are_known_can_be_asked(name):
    """A name may not be any module's: it comes from a client."""
    with pytest.raises(ValueError, match="there is no backend"):
        asked_backends(name)


def test_counts_are_those_of_the_service():
    compiler = ServiceCompiler(FakeService, "fsm", "bounded")
    compiler.close()
    assert compiler.stats() == {"compiled": 1, "failed": 2, "from_memory": 3, "from_disk": 4}


def test_the_options_choose_the_compiler(tmp_path):
    made = []

    def vocabulary():
        made.append(threading.current_thread())
        raise GrammarError("there is none here")

    none = make_compiler(ServerArgs(grammar_backend="none"), vocabulary)
    assert isinstance(none, NoCompiler)
    with pytest.raises(BadConstraint, match="--grammar-backend none"):
        asyncio.run(none.compile(ASKED))
    assert not made
    args = ServerArgs(grammar_whitespace="compact", cache_dir=str(tmp_path))
    compiler = make_compiler(args, vocabulary)
    assert compiler.whitespace == "compact"
    compiler.close()
    assert made != [threading.current_thread()]
    assert isinstance(compiler, ServiceCompiler)
