"""The engine in processes of its own: what it answers, and what becomes of it when one dies."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from contextlib import asynccontextmanager, contextmanager, suppress

import psutil
import pytest

from phloem.scheduler import ContextLengthError, SamplingParams
from phloem.server import Engine
from phloem.server.config import ServerArgs
from phloem.server.frontend import GenerationRequest, ServiceUnavailable
from phloem.server.launch import launched
from phloem.server.located_model import locate_model
from phloem.server.results import ResultBuilder

ENDLESS = {"max_new_tokens": 90_000, "ignore_eos": True}
LONG = {"context_length": 100_000, "pool_tokens": 500_000}
"""A scripted model for which `ENDLESS` takes many seconds."""


@pytest.fixture
def script(tiny_llama, tmp_path):
    """Writes a scripted model; one byte is one token."""

    def write(*responses, **more):
        file = tmp_path / "script.json"
        file.write_text(
            json.dumps({"tokenizer": str(tiny_llama), "responses": list(responses), **more})
        )
        return f"scripted:{file}"

    return write


@asynccontextmanager
async def processes(model, **options):
    """A running engine; nothing of it may be left afterwards."""
    async with launched(locate_model(ServerArgs(model=str(model), **options))) as engine:
        children = [psutil.Process(pid) for pid in engine.pids.values()]
        yield engine
    assert psutil.wait_procs(children, timeout=0)[1] == []


def request(manager, rid, prompt, params, **more):
    ids = manager.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
    return GenerationRequest(rid, ids, SamplingParams.from_dict(params), **more)


async def result(manager, rid, prompt, params):
    """As `Engine.generate` gives it, with the deltas."""
    asked = request(manager, rid, prompt, params)
    builder, deltas = ResultBuilder(asked.prompt_ids, asked.params), []
    async for news in manager.start(asked):
        deltas.append(builder.delta(news))
        last = news
    return builder.whole(last), deltas


def comparable(result):
    """All but id and times."""
    kept = result["meta_info"].items()
    meta = {k: v for k, v in kept if k not in ("id", "timings", "e2e_latency")}
    return {**result, "meta_info": meta}


def expected_of(result):
    """As `comparable`, equal to what differs in the last digits of logprobs alone."""
    kept = comparable(result)
    logprobs = {k: about(v) for k, v in kept["meta_info"].items() if k.endswith("_logprobs")}
    return {**kept, "meta_info": {**kept["meta_info"], **logprobs}}


def about(nested):
    """Nested lists of numbers, each equal to what differs by at most 1e-4 from it."""
    if isinstance(nested, list):
        return [about(entry) for entry in nested]
    return nested if nested is None else pytest.approx(nested, abs=1e-4)


@contextmanager
def standing_still(engine, name="scheduler"):
    """One process does nothing meanwhile, so that what is sent to it is surely in flight."""
    os.kill(engine.pids[name], signal.SIGSTOP)
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.kill(engine.pids[name], signal.SIGCONT)


def in_processes(model, work, **options):
    """What `work(manager)` returns."""

    async def run():
        async with processes(model, **options) as engine:
            return await work(engine.manager)

    return asyncio.run(run())


class TestOutput:
    def test_it_is_that_of_the_engine_in_process(self, tiny_llama):
        cases = [
            ("hello", {"temperature": 0, "max_new_tokens": 20}),
            ("hello", {"seed": 3, "max_new_tokens": 20, "temperature": 0.9, "top_p": 0.9}),
            ("abc" * 30, {"temperature": 0, "max_new_tokens": 30, "top_logprobs": 2}),
            ("xyz", {"max_new_tokens": 0, "prompt_logprobs_from": 0, "top_logprobs": 1}),
            ("bias", {"temperature": 0, "max_new_tokens": 5, "logit_bias": {66: 100.0}}),
        ]
        with Engine(model=str(tiny_llama)) as engine:
            expected = [engine.generate(prompt, params) for prompt, params in cases]

        async def run(manager):
            return [(await result(manager, f"r{i}", *case))[0] for i, case in enumerate(cases)]

        results = in_processes(tiny_llama, run)
        assert [comparable(r) for r in results] == [expected_of(r) for r in expected]
        assert all(set(r["meta_info"]["timings"]) >= {"queue", "total"} for r in results)

    @pytest.mark.parametrize("stop", [["STOP"], ["ký 🐎", "zzz"]])
    def test_characters_and_stop_strings_over_many_tokens(self, script, stop):
        model = script({"prompt": "say", "output": "žluťoučký 🐎 STOP not this"})
        params = {"temperature": 0, "stop": stop, "max_new_tokens": 100}
        with Engine(model=model) as engine:
            expected = engine.generate("say", params)
        whole, deltas = in_processes(model, lambda manager: result(manager, "r", "say", params))
        assert comparable(whole) == comparable(expected)
        assert "".join(d["text"] for d in deltas) == expected["text"]
        assert not any("\ufffd" in d["text"] for d in deltas)

    def test_special_tokens_are_shown_where_that_is_asked(self, script):
        model = script({"prompt": "say", "output_ids": [66, 0, 67]})
        params = {"temperature": 0, "max_new_tokens": 3, "ignore_eos": True}

        async def run(manager):
            texts = []
            for i, skip in enumerate((True, False)):
                asked = request(manager, f"r{i}", "say", params, skip_special_tokens=skip)
                texts.append("".join([news.text async for news in manager.start(asked)]))
            return texts

        skipped, shown = in_processes(model, run)
        assert shown.replace("<end>", "") == skipped
        assert "<end>" in shown

    def test_many_streams_at_once_each_get_their_own_in_order(self, script):
        texts = [f"{i:03}: " + "ab" * (i % 17) for i in range(150)]
        model = script(
            *({"prompt": f"<{i:03}>", "output": text} for i, text in enumerate(texts)),
        )

        async def run(manager):
            params = {"temperature": 0, "max_new_tokens": 100}
            jobs = (result(manager, f"r{i}", f"<{i:03}>", params) for i in range(len(texts)))
            return await asyncio.gather(*jobs)

        results = in_processes(model, run, max_running_requests=64)
        assert [whole["text"] for whole, _ in results] == texts
        for whole, deltas in results:
            counts = [d["meta_info"]["completion_tokens"] for d in deltas]
            assert counts == sorted(counts)
            assert whole["output_ids"] == [t for d in deltas for t in d["output_ids"]]

    def test_namespaces_share_no_prefix(self, tiny_llama):
        async def run(manager):
            cached = []
            for i, namespace in enumerate([("a", 1), ("b", None), ("a", 1)]):
                asked = request(
                    manager, f"r{i}", "hello world", {"max_new_tokens": 1}, namespace=namespace
                )
                cached += [news.cached_tokens async for news in manager.start(asked)]
            return cached

        assert in_processes(tiny_llama, run) == [0, 0, 10]


class TestRefusals:
    def test_what_can_never_be_served_is_refused_and_nothing_is_sent(self, script):
        async def run(manager):
            with pytest.raises(ContextLengthError, match="600 tokens"):
                manager.start(request(manager, "r", [1] * 600, {}))
            with pytest.raises(ValueError, match="token id 257"):
                manager.start(request(manager, "r", [1, 257], {}))
            with pytest.raises(ValueError, match="stop_token_ids has token id 999"):
                manager.start(request(manager, "r", [1], {"stop_token_ids": [999]}))
            with pytest.raises(ValueError, match="at least one token"):
                manager.start(request(manager, "r", [], {}))
            params = {"max_new_tokens": 2, "ignore_eos": True}
            return await manager.state(), await result(manager, "r", "abc", params)

        state, (whole, _) = in_processes(script(context_length=512), run, max_running_requests=8)
        assert (state["running"], state["waiting"]) == (0, 0)
        assert whole["meta_info"]["completion_tokens"] == 2

    def test_an_id_is_in_use_until_its_request_has_ended(self, script):
        async def run(manager):
            asked = request(manager, "r", "abc", ENDLESS)
            stream = manager.start(asked)
            with pytest.raises(ValueError, match="'r' is in use"):
                manager.start(asked)
            assert manager.abort("r") == 1
            last = [news async for news in stream][-1]
            again = manager.start(request(manager, "r", "abc", {"max_new_tokens": 0}))
            return last.finish.type, [news.finish.type async for news in again]

        assert in_processes(script(**LONG), run, max_running_requests=8) == ("abort", ["length"])


class TestEnds:
    @pytest.mark.parametrize("reads", [0, 1, 3])
    def test_closing_a_stream_frees_its_memory(self, script, reads):
        async def run(manager):
            stream = manager.start(request(manager, "r", "abc", ENDLESS))
            for _ in range(reads):
                await stream.__anext__()
            stream.close()
            stream.close()
            assert [news async for news in stream] == []
            # Behind the abort in the scheduler's inbox: it is done by then.
            return await manager.state()

        state = in_processes(script(**LONG), run, max_running_requests=8)
        assert (state["running"], state["waiting"], state["used"]) == (0, 0, 0)
        assert state["cached"] + state["free"] == state["total"]

    def test_closing_wakes_the_one_who_reads(self, script):
        async def run():
            async with processes(script()) as engine:
                with standing_still(engine):
                    stream = engine.manager.start(request(engine.manager, "r", "abc", {}))
                    reading = asyncio.ensure_future(stream.__anext__())
                    await asyncio.wait([reading], timeout=0)
                    stream.close()
                    with pytest.raises(StopAsyncIteration):
                        await reading

        asyncio.run(run())

    def test_aborting_all_ends_each_stream_with_its_reason(self, script):
        async def run(manager):
            streams = [manager.start(request(manager, f"r{i}", "abc", ENDLESS)) for i in range(5)]
            streams[0].close()
            assert manager.abort("nobody") == 0
            assert manager.abort(None) == 4
            ends = []
            for stream in streams[1:]:
                news = [news async for news in stream]
                ends.append(news[-1].finish)
            return ends, manager.abort(None), await manager.state()

        ends, running, state = in_processes(script(**LONG), run, max_running_requests=8)
        assert {(end.type, end.message) for end in ends} == {("abort", "the request was aborted")}
        assert (running, state["used"]) == (0, 0)


class TestControl:
    def test_state_and_flush(self, script):
        async def run(manager):
            stream = manager.start(request(manager, "r", "hello", ENDLESS))
            await stream.__anext__()
            busy = await manager.state()
            with pytest.raises(ValueError, match="1 requests use the cache"):
                await manager.flush_cache()
            stream.close()
            cached = (await manager.state())["cached"]
            return busy, cached, await manager.flush_cache(), await manager.state()

        busy, cached, freed, after = in_processes(script(**LONG), run, max_running_requests=8)
        assert (busy["running"], busy["waiting"]) == (1, 0)
        assert busy["used"] >= 5
        assert freed == cached >= 5
        assert after["free"] == after["total"] == sum(after[k] for k in ("used", "cached", "free"))

    @pytest.mark.parametrize("name", ["scheduler", "detokenizer"])
    def test_a_process_that_stands_still_misses_a_beat(self, script, name):
        async def run():
            async with processes(script()) as engine:
                beats = engine.manager.heartbeat
                await until(beats, None)
                with standing_still(engine, name):
                    beats.beat()
                    await until(beats, name)
                    with pytest.raises(ServiceUnavailable, match=f"the {name} process has not"):
                        await engine.manager.ping(0)
                await until(beats, None)
                await engine.manager.ping(0)

        async def until(beats, name):
            # The scheduler's answer comes first.
            while (beats.silence and beats.silence.process) != name:
                await asyncio.sleep(0)

        asyncio.run(run())


class TestDeath:
    @pytest.mark.parametrize("name", ["scheduler", "detokenizer"])
    def test_of_a_process_fails_everything_in_flight(self, script, name):
        async def run():
            async with processes(script()) as engine:
                manager = engine.manager
                with standing_still(engine):
                    streams = [
                        manager.start(request(manager, f"r{i}", "abc", {})) for i in range(3)
                    ]
                    waiting = [
                        *(asyncio.ensure_future(stream.__anext__()) for stream in streams),
                        asyncio.ensure_future(manager.state()),
                    ]
                    await asyncio.wait(waiting, timeout=0)
                    os.kill(engine.pids[name], signal.SIGKILL)
                    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
                assert engine.died.result() == f"the {name} process died (signal 9, SIGKILL)"
                assert {type(outcome) for outcome in outcomes} == {ServiceUnavailable}
                assert {str(outcome) for outcome in outcomes} == {engine.died.result()}
                with pytest.raises(ServiceUnavailable):
                    manager.start(request(manager, "late", "abc", {}))
                with pytest.raises(ServiceUnavailable):
                    await manager.ping(1)
                streams[0].close()
                assert manager.abort(None) == 0

        asyncio.run(run())

    def test_options_that_do_not_fit_the_model_are_refused_with_a_sentence(self, tiny_llama):
        with pytest.raises(ValueError, match="context_length 9999 is more than the 512"):
            in_processes(tiny_llama, None, context_length=9999)


def test_neither_this_process_nor_the_detokenizer_has_torch(tiny_llama):
    maps = "/proc/{}/maps"
    if not os.path.exists(maps.format("self")):
        pytest.skip("this system does not show what a process has loaded")

    async def run():
        async with processes(tiny_llama) as engine:
            await result(engine.manager, "r", "abc", {"max_new_tokens": 2})
            loaded = {}
            for name, pid in engine.pids.items():
                with open(maps.format(pid)) as file:
                    loaded[name] = file.read()
            return loaded

    loaded = asyncio.run(run())
    assert "libtorch" in loaded["scheduler"]
    assert "torch" not in loaded["detokenizer"]
    assert "numpy" not in loaded["detokenizer"]
