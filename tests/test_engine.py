"""The engine as its users see it: forms of input, streams, threads, asyncio, ends, errors."""

from __future__ import annotations

import asyncio
import gc
import json
import subprocess
import sys
import threading
import weakref

import numpy as np
import pytest
import torch

from phloem.server import Engine, EngineDead, wiring

GREEDY = {"temperature": 0, "max_new_tokens": 12}


@pytest.fixture(scope="module")
def engine(tiny_llama):
    with Engine(model=str(tiny_llama)) as made:
        yield made


@pytest.fixture
def open_engine(monkeypatch):
    """Makes engines whose parts a test may look into: `(engine, parts)`."""
    made = []

    def build_and_keep(args, progress):
        made.append(wiring.build(args, progress))
        return made[-1]

    def make(**options):
        monkeypatch.setattr("phloem.server.engine.build", build_and_keep)
        engines.append(Engine(**options))
        return engines[-1], made[-1]

    engines = []
    yield make
    for engine in engines:
        engine.shutdown()


@pytest.fixture
def scripted(tiny_llama, tmp_path):
    """Makes engines that answer by a script; one byte is one token."""
    made = []

    def make(responses, **options):
        file = tmp_path / f"script{len(made)}.json"
        file.write_text(json.dumps({"tokenizer": str(tiny_llama), "responses": responses}))
        made.append(Engine(model=f"scripted:{file}", **options))
        return made[-1]

    yield make
    for engine in made:
        engine.shutdown()


def settled(engine):
    """Whether nothing is held any more, asked between two steps."""

    def look(scheduler):
        scheduler.manager.check()
        return (
            scheduler.num_active == 0 and scheduler.manager.available == scheduler.manager.capacity
        )

    return engine._driver.call(look)


class TestForms:
    def test_one_prompt_gives_one_result_and_a_list_gives_a_list(self, engine):
        one = engine.generate("abc", GREEDY)
        many = engine.generate(["abc", "abd"], GREEDY)
        assert one["output_ids"] == many[0]["output_ids"]
        assert len(many) == 2
        assert engine.batch_generate(["abc"], GREEDY)[0]["text"] == one["text"]

    def test_ids_are_the_same_as_their_text(self, engine):
        ids = engine.tokenizer.encode("abc")
        assert (
            engine.generate(input_ids=ids, sampling_params=GREEDY)["output_ids"]
            == (engine.generate("abc", GREEDY)["output_ids"])
        )

    @pytest.mark.parametrize(
        "kind", [np.array, torch.tensor, lambda ids: [np.array(i) for i in ids]]
    )
    def test_arrays_and_tensors_are_lists_of_ids_too(self, engine, kind):
        expected = engine.generate(input_ids=[[5, 6, 7], [8, 9, 10]], sampling_params=GREEDY)
        got = engine.generate(input_ids=kind([[5, 6, 7], [8, 9, 10]]), sampling_params=GREEDY)
        assert [r["output_ids"] for r in got] == [r["output_ids"] for r in expected]
        one = engine.generate(input_ids=kind([[5, 6, 7]])[0], sampling_params=GREEDY)
        assert one["output_ids"] == expected[0]["output_ids"]

    def test_each_prompt_may_have_its_own_parameters(self, engine):
        lengths = [3, 5]
        params = [{"max_new_tokens": n, "ignore_eos": True} for n in lengths]
        results = engine.generate(["abc", "abc"], params)
        assert [len(r["output_ids"]) for r in results] == lengths

    def test_n_gives_that_many_outputs_that_differ(self, engine):
        results = engine.generate("abc", {"n": 3, "seed": 5, "max_new_tokens": 20})
        assert len({tuple(r["output_ids"]) for r in results}) == 3

    def test_a_seed_gives_the_same_output_alone_and_in_company(self, engine):
        params = {"seed": 11, "max_new_tokens": 20, "temperature": 0.8, "top_p": 0.9}
        alone = engine.generate("abc", params)
        crowd = engine.generate(["xyz", "abc", "abcabc"], [{}, params, {}])
        assert crowd[1]["output_ids"] == alone["output_ids"]

    def test_meta_info_tells_what_happened(self, engine):
        engine.generate("hello world", GREEDY)
        meta = engine.generate("hello world", GREEDY)["meta_info"]
        assert meta["prompt_tokens"] == 11
        assert meta["cached_tokens"] == 10
        assert meta["finish_reason"]["type"] in ("stop", "length")
        assert set(meta["timings"]) == {"queue", "ttft", "decode", "total"}
        assert meta["timings"]["total"] >= meta["timings"]["ttft"] >= meta["timings"]["queue"] >= 0

    def test_no_new_tokens_scores_the_prompt(self, engine):
        meta = engine.generate(
            "abc", {"max_new_tokens": 0, "prompt_logprobs_from": 0, "top_logprobs": 2}
        )["meta_info"]
        assert [t for _, t in meta["input_token_logprobs"]] == engine.tokenizer.encode("abc")
        assert meta["input_token_logprobs"][0][0] is None
        assert [len(top or ()) for top in meta["input_top_logprobs"]] == [0, 2, 2]
        assert meta["completion_tokens"] == 0

    def test_prompt_logprobs_are_the_same_twice(self, engine):
        """Case SA-06: a prompt of a block and one token, cold and warm."""
        params = {"max_new_tokens": 1, "prompt_logprobs_from": 0, "temperature": 0}
        calls = [
            engine.generate(input_ids=list(range(1, 34)), sampling_params=params)["meta_info"]
            for _ in range(2)
        ]
        first, second = (meta["input_token_logprobs"] for meta in calls)
        assert len(first) == 33
        assert [p for p, _ in second[1:]] == pytest.approx([p for p, _ in first[1:]], abs=1e-4)

    def test_top_p_does_not_change_raw_logprobs(self, engine):
        """Case SA-07."""
        params = {"temperature": 0, "max_new_tokens": 6, "top_logprobs": 3}
        metas = [
            engine.generate("abc", params | {"top_p": top_p})["meta_info"] for top_p in (1, 0.0001)
        ]
        assert metas[0]["output_token_logprobs"] == metas[1]["output_token_logprobs"]
        assert metas[0]["output_top_logprobs"] == metas[1]["output_top_logprobs"]


class TestStreams:
    def test_a_stream_joined_is_the_whole(self, engine):
        whole = engine.generate("abc", GREEDY | {"top_logprobs": 1})
        parts = list(engine.generate("abc", GREEDY | {"top_logprobs": 1}, stream=True))
        assert "".join(p["text"] for p in parts) == whole["text"]
        assert [t for p in parts for t in p["output_ids"]] == whole["output_ids"]
        tokens = [pair for p in parts for pair in p["meta_info"]["output_token_logprobs"]]
        assert [t for _, t in tokens] == whole["output_ids"]
        assert [p["meta_info"]["finish_reason"] is None for p in parts] == (
            [True] * (len(parts) - 1) + [False]
        )

    def test_characters_and_stop_strings_over_many_tokens(self, scripted):
        engine = scripted([{"prompt": "say", "output": "žluťoučký 🐎 STOP not this"}])
        for stop, text in ((["STOP"], "žluťoučký 🐎 "), (["ký 🐎", "zzz"], "žluťouč")):
            params = {"temperature": 0, "stop": stop, "max_new_tokens": 100}
            whole = engine.generate("say", params)
            parts = list(engine.generate("say", params, stream=True))
            assert whole["text"] == text
            assert "".join(p["text"] for p in parts) == text
            assert not any("\ufffd" in p["text"] for p in parts)
            assert whole["meta_info"]["finish_reason"] == {"type": "stop", "matched": stop[0]}

    @pytest.mark.parametrize("reads", [0, 1, 3])
    def test_closing_a_stream_frees_its_memory(self, tiny_llama, reads):
        with Engine(model=str(tiny_llama)) as engine:
            params = {"max_new_tokens": 400, "ignore_eos": True}
            stream = engine.generate("abc", params, stream=True)
            for _ in range(reads):
                next(stream)
            stream.close()
            assert settled(engine)

    def test_a_dropped_stream_frees_its_memory(self, engine):
        engine.generate("abc", {"max_new_tokens": 400, "ignore_eos": True}, stream=True)
        assert settled(engine)

    def test_only_one_output_can_be_streamed(self, engine):
        with pytest.raises(ValueError, match="one prompt and one output, not 2"):
            engine.generate(["a", "b"], stream=True)


class TestThreadsAndAsyncio:
    def test_many_threads_get_their_own_answers(self, engine):
        prompts = [f"thread {i} " * (i % 4 + 1) for i in range(12)]
        expected = [r["output_ids"] for r in engine.generate(prompts, GREEDY)]
        got = {}

        def ask(i):
            got[i] = engine.generate(prompts[i], GREEDY)["output_ids"]

        threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(prompts))]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert [got[i] for i in range(len(prompts))] == expected

    def test_two_engines_in_one_process(self, tiny_llama, engine):
        with Engine(model=str(tiny_llama), page_size=16) as other:
            assert (
                other.generate("abc", GREEDY)["output_ids"]
                == (engine.generate("abc", GREEDY)["output_ids"])
            )

    def test_async_calls_run_together(self, engine):
        async def ask():
            return await asyncio.gather(
                engine.async_generate("abc", GREEDY), engine.async_generate(["x", "y"], GREEDY)
            )

        one, two = asyncio.run(ask())
        assert one["output_ids"] == engine.generate("abc", GREEDY)["output_ids"]
        assert len(two) == 2

    def test_async_streams(self, engine):
        async def ask():
            return [part["text"] async for part in engine.async_stream("abc", GREEDY)]

        assert "".join(asyncio.run(ask())) == engine.generate("abc", GREEDY)["text"]

    def test_cancelling_frees_the_memory(self, engine):
        async def ask():
            forever = {"max_new_tokens": 400, "ignore_eos": True}
            task = asyncio.create_task(engine.async_generate("abc", forever))
            async for _ in engine.async_stream("abcd", forever):
                break
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        asyncio.run(ask())
        assert settled(engine)


class TestEnds:
    def test_shutdown_leaves_no_thread_and_may_be_called_twice(self, tiny_llama):
        before = set(threading.enumerate())
        engine = Engine(model=str(tiny_llama), enable_overlap=True)
        engine.generate("abc", GREEDY)
        engine.shutdown()
        engine.shutdown()
        assert set(threading.enumerate()) == before
        with pytest.raises(EngineDead, match="shut down"):
            engine.generate("abc", GREEDY)

    def test_shutdown_ends_what_runs_as_aborted(self, tiny_llama):
        engine = Engine(model=str(tiny_llama))
        stream = engine.generate("abc", {"max_new_tokens": 400, "ignore_eos": True}, stream=True)
        next(stream)
        engine.shutdown()
        *_, last = stream
        assert last["meta_info"]["finish_reason"]["type"] == "abort"

    def test_abort_by_id(self, engine):
        stream = engine.generate("abc", {"max_new_tokens": 400, "ignore_eos": True}, stream=True)
        rid = next(stream)["meta_info"]["id"]
        assert engine.abort(rid)
        *_, last = stream
        assert last["meta_info"]["finish_reason"]["type"] == "abort"
        assert not engine.abort(rid)
        assert not engine.abort("never there")

    def test_a_loop_that_dies_tells_everybody(self, tiny_llama, open_engine):
        engine, parts = open_engine(model=str(tiny_llama))
        parts.loop.step = lambda: 1 / 0
        for _ in range(3):
            with pytest.raises(EngineDead, match="division by zero"):
                engine.generate("abc", GREEDY)

    def test_a_listener_that_is_gone_harms_nobody(self, engine):
        async def ask_and_leave():
            stream = engine.async_stream("abc", {"max_new_tokens": 400, "ignore_eos": True})
            await anext(stream)
            return stream

        loop = asyncio.new_event_loop()
        stream = loop.run_until_complete(ask_and_leave())
        loop.close()
        assert engine.generate("abc", GREEDY)["output_ids"]
        with pytest.raises(RuntimeError):
            asyncio.run(anext(stream))
        assert settled(engine)

    def test_an_engine_that_is_dropped_ends_its_threads_and_gives_its_memory_back(
        self, tiny_llama, open_engine
    ):
        before = set(threading.enumerate())
        engine = Engine(model=str(tiny_llama), enable_overlap=True)
        engine.generate("abc", GREEDY)
        del engine
        gc.collect()
        # Threads of earlier engines may end meanwhile.
        assert set(threading.enumerate()) <= before

    def test_shutdown_gives_the_model_back(self, tiny_llama, monkeypatch):
        seen = []

        def build(args, progress):
            parts = wiring.build(args, progress)
            seen.append(weakref.ref(parts.runner))
            return parts

        monkeypatch.setattr("phloem.server.engine.build", build)
        engine = Engine(model=str(tiny_llama))
        engine.generate("abc", GREEDY)
        engine.shutdown()
        gc.collect()
        assert seen[0]() is None
        assert engine.tokenizer.encode("abc")

    def test_python_ends_in_the_middle_of_an_answer(self, tiny_llama):
        code = (
            "from phloem.server import Engine\n"
            f"stream = Engine(model={str(tiny_llama)!r}).generate("
            "'abc', {'max_new_tokens': 400, 'ignore_eos': True}, stream=True)\n"
            "next(stream)\n"
        )
        ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert (ended.returncode, ended.stderr) == (0, "")

    @pytest.mark.parametrize("temperature", [0.0, 1.0])
    def test_a_model_that_fails_ends_its_requests_and_goes_on(
        self, tiny_llama, open_engine, temperature
    ):
        engine, parts = open_engine(model=str(tiny_llama))
        params = GREEDY | {"temperature": temperature}
        pool = parts.runner._kv_pool
        layer = pool.layer
        pool.layer = lambda index: (_ for _ in ()).throw(RuntimeError("out of memory"))
        failed = engine.generate("abc", params)["meta_info"]["finish_reason"]
        assert failed["type"] == "error"
        assert "out of memory" in failed["message"]
        pool.layer = layer
        assert engine.generate("abc", params)["meta_info"]["finish_reason"]["type"] != "error"
        assert settled(engine)

    def test_a_row_of_nan_fails_alone_and_is_not_cached(self, tiny_llama, open_engine):
        """Case SC-10."""
        engine, parts = open_engine(model=str(tiny_llama), kernel_backend="torch")
        good = engine.generate("abc", GREEDY)["output_ids"]
        embedding = parts.runner._model._decoder._spec.embedding.values
        bad_token = engine.tokenizer.encode("!")[0]
        embedding[bad_token] = float("nan")
        bad, fine = engine.generate(["12!34567890", "abc"], GREEDY)
        assert bad["meta_info"]["finish_reason"]["type"] == "error"
        assert fine["output_ids"] == good
        embedding[bad_token] = 0.0
        again = engine.generate("12!34567890", GREEDY)["meta_info"]
        assert again["cached_tokens"] == 0
        assert again["finish_reason"]["type"] != "error"


class TestBadInput:
    @pytest.mark.parametrize(
        ("params", "says"),
        [
            ({"temperature": float("nan")}, "temperature is nan"),
            ({"temperature": -1}, "temperature is -1"),
            ({"temperature": 999999}, "temperature is 999999"),
            ({"top_p": 0}, "top_p is 0"),
            ({"top_k": 0}, "top_k is 0"),
            ({"repetition_penalty": 0}, "repetition_penalty is 0"),
            ({"max_new_tokens": -5}, "max_new_tokens is -5"),
            ({"max_new_tokens": 10**9}, "context is 512 tokens"),
            ({"top_logprobs": 10**9}, "top_logprobs is 1000000000"),
            ({"n": 5_000_000}, "n is 5000000"),
            ({"n": 0}, "n is 0"),
            ({"logit_bias": {9999: 1}}, "token id 9999"),
            ({"stop_token_ids": [-3]}, "token id -3"),
            ({"stop": [""]}, "non-empty"),
            ({"tempreature": 1}, "'tempreature'"),
            ({"seed": 2**70}, "seed is"),
        ],
    )
    def test_bad_parameters_are_refused_in_a_sentence(self, engine, params, says):
        with pytest.raises(ValueError, match=says):
            engine.generate("abc", params)
        assert engine.generate("abc", GREEDY)["output_ids"]

    def test_a_prompt_longer_than_the_context_states_both_lengths(self, engine):
        with pytest.raises(ValueError, match=r"600 tokens .* context is 512"):
            engine.generate("x" * 600)

    @pytest.mark.parametrize(
        "call",
        [
            {},
            {"prompts": "a", "input_ids": [1]},
            {"input_ids": [[1], []]},
            {"input_ids": [999999]},
            {"input_ids": [1, True]},
            {"input_ids": ["a"]},
            {"input_ids": 5},
            {"prompts": 5},
            {"prompts": "a", "sampling_params": "x"},
            {"prompts": "a", "namespace": ["x"]},
            {"prompts": ["a", "b"], "sampling_params": [{}]},
            {"prompts": ""},
        ],
    )
    def test_bad_prompts_are_refused_and_nothing_runs(self, engine, call):
        with pytest.raises(ValueError):
            engine.generate(**call)
        assert settled(engine)

    def test_one_bad_prompt_of_several_refuses_the_call_and_queues_none(self, engine):
        with pytest.raises(ValueError, match="context is 512"):
            engine.generate(["fine", "x" * 600], GREEDY)
        assert settled(engine)

    @pytest.mark.parametrize(
        ("options", "says"),
        [
            ({"page_size": 3}, "power of two"),
            ({"dtype": "int3"}, "dtype 'int3' is unknown"),
            ({"chunked_prefill_size": 24, "page_size": 16}, "no multiple of page_size 16"),
            ({"schedule_policy": "best"}, "schedule_policy 'best'"),
            ({"context_length": 100_000}, "more than the 512 tokens"),
            ({"device": "cuda"}, "no GPU"),
            ({"max_total_tokens": 10**12}, "max_total_tokens 1000000000000 needs"),
            ({"max_total_tokens": 2}, "2 serves nobody: with page_size 1 a request needs 3 at"),
            ({"max_total_tokens": 47, "page_size": 16}, "with page_size 16 a request needs 48 at"),
            ({"page_size": 1.5}, "page_size is 1.5"),
            ({"offline": "false"}, "offline is 'false'"),
            ({"random_seed": 2**70}, "random_seed"),
            ({"model": ""}, "model is empty"),
            ({"model": None}, "model is None"),
            ({"model": "/no/such/folder"}, "no such|There is no file"),
            ({"model": "scripted:/no/such/file"}, "cannot be read"),
        ],
    )
    def test_bad_options_are_refused_in_a_sentence(self, tiny_llama, options, says):
        with pytest.raises(ValueError, match=says):
            Engine(**({"model": str(tiny_llama)} | options))

    @pytest.mark.parametrize("page_size", [1, 16])
    def test_the_least_cache_that_an_engine_starts_with_serves_a_token(self, scripted, page_size):
        with pytest.raises(ValueError, match=f"needs {3 * page_size} at least"):
            scripted([], max_total_tokens=3 * page_size - 1, page_size=page_size)
        engine = scripted([], max_total_tokens=3 * page_size, page_size=page_size)
        result = engine.generate("a", {"max_new_tokens": 1, "ignore_eos": True})
        assert len(result["output_ids"]) == 1

    def test_an_unknown_option_is_a_type_error(self):
        with pytest.raises(TypeError, match="modle"):
            Engine(modle="smollm2")


class TestScripts:
    def test_outputs_by_prompt_text_ids_and_distribution(self, scripted, engine):
        a, b = engine.tokenizer.encode("ab")
        engine = scripted(
            [
                {"prompt": "one", "output": "first"},
                {"prompt": "one two", "output": "second"},
                {"prompt_ids": [7, 8], "output_ids": [5, 6]},
                {"prompt": "dice", "distributions": [{str(a): 0.5, str(b): 0.5}] * 40},
            ]
        )
        assert engine.generate("one", GREEDY)["text"] == "first"
        assert engine.generate("one two", GREEDY)["text"] == "second"
        assert engine.generate("never heard of", GREEDY)["text"] == ""
        assert engine.generate(input_ids=[7, 8])["output_ids"] == [5, 6, 0]
        rolled = engine.generate("dice", {"seed": 1, "max_new_tokens": 40})["text"]
        assert set(rolled) == {"a", "b"}

    @pytest.mark.parametrize(
        ("content", "says"),
        [
            ("{", "no JSON"),
            ("[]", "no object"),
            ('{"respones": []}', "'respones'"),
            ('{"responses": [{"prompt": "x"}]}', "exactly one of output"),
        ],
    )
    def test_a_bad_script_is_refused_with_its_name(self, tmp_path, tiny_llama, content, says):
        file = tmp_path / "bad.json"
        file.write_text(
            content.replace("{", f'{{"tokenizer": "{tiny_llama}", ', 1)
            if content.startswith('{"')
            else content
        )
        with pytest.raises(ValueError, match=rf"bad\.json.*{says}"):
            Engine(model=f"scripted:{file}")


class TestPrioritiesAndTenants:
    @pytest.fixture
    def engine(self, scripted):
        """Runs one request after the other."""
        return scripted(
            [],
            max_running_requests=1,
            enable_priority_scheduling=True,
            enable_tenant_fairness=True,
        )

    async def ends(self, engine, calls):
        """The names of calls in the order of their ends; all wait before any is let in."""
        order = []

        async def ask(name, **options):
            # Long enough that who reads what has ended is not who comes first in this loop.
            params = GREEDY | {"ignore_eos": True, "max_new_tokens": 200}
            await engine.async_generate("a", params, **options)
            order.append(name)

        engine.pause("in_place")
        asked = [asyncio.create_task(ask(name, **options)) for name, options in calls]
        while engine._driver.call(lambda scheduler: scheduler.num_waiting) < len(calls):
            await asyncio.sleep(0)
        engine.resume()
        await asyncio.gather(*asked)
        return order

    def test_the_more_urgent_go_first(self, engine):
        calls = [(priority, {"priority": priority}) for priority in (0, -1, 7, 3)]
        assert asyncio.run(self.ends(engine, calls)) == [7, 3, 0, -1]

    def test_tenants_take_turns(self, engine):
        calls = [(tenant, {"tenant": tenant}) for tenant in ("a", "a", "a", "b")]
        order = asyncio.run(self.ends(engine, calls))
        assert order.index("b") < 2

    def test_streams_and_chats_take_them_too(self, engine):
        options = {"priority": 2, "tenant": "a"}
        assert list(engine.generate("a", GREEDY, stream=True, **options))

        async def read():
            return [part async for part in engine.async_stream("a", GREEDY, **options)]

        assert asyncio.run(read())

    def test_a_priority_that_would_be_ignored_is_refused(self, scripted):
        with pytest.raises(ValueError, match="priority is 1, but requests are not scheduled by"):
            scripted([]).generate("a", GREEDY, priority=1)


def test_200_requests_of_mixed_lengths_all_finish(tiny_llama):
    with Engine(model=str(tiny_llama), max_total_tokens=3000) as engine:
        prompts = [[1 + (i * 7 + j) % 250 for j in range(1 + (i * 37) % 300)] for i in range(200)]
        params = [{"max_new_tokens": 1 + (i * 13) % 60, "temperature": 0} for i in range(200)]
        results = engine.generate(input_ids=prompts, sampling_params=params)
        ends = {r["meta_info"]["finish_reason"]["type"] for r in results}
        assert ends <= {"stop", "length"}
        assert settled(engine)
