"""Constraints of a request's sequences: compiled together, once each, all or none."""

from __future__ import annotations

import asyncio

import pytest

from phloem.grammar import Constraint
from phloem.scheduler import SamplingParams
from phloem.server.constraints import BadConstraint, ConstraintRequest
from phloem.server.frontend import GenerationRequest
from phloem.server.http.constraints import (
    MOST_AT_ONCE,
    asked_constraint,
    is_large,
    with_constraints,
)
from phloem.server.http.errors import ApiError
from phloem.server.http.metrics import Metrics
from phloem.server.messages import CompiledConstraint, Load


def request(pattern):
    return ConstraintRequest(Constraint.regex(pattern), "regex")


def sequence(rid):
    return GenerationRequest(rid, [1], SamplingParams())


class Compiler:
    """Compiles nothing before it is told to."""

    def __init__(self):
        self.asked = {}
        self.cancelled = []

    async def compile(self, asked):
        pattern = asked.constraint.source
        assert pattern not in self.asked
        future = self.asked[pattern] = asyncio.get_running_loop().create_future()
        try:
            await future
        except asyncio.CancelledError:
            self.cancelled.append(pattern)
            raise
        return CompiledConstraint.of(Load(pattern, "fsm", b""), None, None)

    def finish(self, pattern, error=None):
        future = self.asked[pattern]
        future.set_exception(error) if error else future.set_result(None)


async def begin(compiler, patterns, metrics=None):
    """The requests that are under way, once nothing more happens by itself."""
    asked = [pattern and request(pattern) for pattern in patterns]
    requests = [sequence(str(index)) for index in range(len(asked))]
    work = with_constraints(compiler, metrics or Metrics(), requests, asked)
    task = asyncio.ensure_future(work)
    await settle()
    return task


async def settle():
    for _ in range(10):
        await asyncio.sleep(0)


def test_different_constraints_are_compiled_side_by_side_and_equal_ones_once():
    async def run():
        compiler = Compiler()
        task = await begin(compiler, ["a", None, "b", "a"])
        assert list(compiler.asked) == ["a", "b"]
        compiler.finish("b")
        await settle()
        assert not task.done()
        compiler.finish("a")
        return await task

    keys = [each.constraint and each.constraint.load.key for each in asyncio.run(run())]
    assert keys == ["a", None, "b", "a"]


def test_one_request_has_only_so_many_compiled_at_once():
    async def run():
        compiler = Compiler()
        patterns = [f"p{index}" for index in range(MOST_AT_ONCE + 1)]
        task = await begin(compiler, patterns)
        assert list(compiler.asked) == patterns[:-1]
        compiler.finish(patterns[1])
        await settle()
        assert list(compiler.asked) == patterns
        for pattern in (patterns[0], *patterns[2:]):
            compiler.finish(pattern)
        assert len(await task) == len(patterns)

    asyncio.run(run())


def test_one_that_is_refused_ends_the_others():
    async def run():
        compiler = Compiler()
        task = await begin(compiler, ["a", "b", "c"])
        compiler.finish("b", BadConstraint("regex", "it is wrong"))
        with pytest.raises(ApiError) as caught:
            await task
        assert caught.value.param == "regex"
        assert compiler.cancelled == ["a", "c"]

    asyncio.run(run())


def test_who_leaves_cancels_all_of_them():
    async def run():
        compiler = Compiler()
        task = await begin(compiler, ["a", "b"])
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        assert compiler.cancelled == ["a", "b"]

    asyncio.run(run())


def test_counts_of_the_compiler_are_shown_as_counters():
    text = Metrics().exposition({}, {"compiled": 3, "from_disk": 0}).decode()
    assert "# TYPE phloem_grammar_compiled_total counter" in text
    assert 'phloem_grammar_compiled_total{model_name="phloem"} 3.0' in text
    assert 'phloem_grammar_from_disk_total{model_name="phloem"} 0.0' in text
    assert "from_memory" not in text


def test_what_is_large_is_seen_without_reading_all_of_it():
    small = {"json_schema": {"enum": ["a"] * 1_000, "properties": {"a": [{}, None, 1, True]}}}
    assert not is_large(small)
    assert is_large({"regex": "a" * 30_000})
    assert is_large({"a": {"b" * 30_000: 1}})
    assert is_large([{"a": 1, "b": 2}] * 30_000)

    class Bottomless(list):
        def __iter__(self):
            raise AssertionError("it is looked at")

    assert is_large([Bottomless([0] * 30_000)])


@pytest.mark.parametrize("length", [10, 30_000])
def test_a_large_constraint_is_read_as_a_small_one_is(length):
    class Fields:
        regex = "a" * length
        grammar_options = None

        def __getattr__(self, name):
            return None

    asked = asyncio.run(asked_constraint(Fields(), "bounded"))
    assert asked == request("a" * length)
