"""Constraints from the engine's call to the text: enforced, whatever else goes on."""

from __future__ import annotations

import asyncio
import json
import os
import re
import threading
from pathlib import Path

import pytest

from phloem.grammar import Constraint
from phloem.server import Engine

PHONE = r"\+[1-9][0-9]{1,2} [0-9]{3,5}-[0-9]{4}"
CITY = {
    "type": "object",
    "properties": {
        "name_of_the_city": {"type": "string", "maxLength": 20},
        "population_in_thousands": {"type": "integer", "minimum": 0, "maximum": 99999},
        "country": {"enum": ["AT", "DE", "CH"]},
    },
    "required": ["name_of_the_city", "population_in_thousands", "country"],
    "additionalProperties": False,
}
SAMPLED = {"temperature": 1.2, "max_new_tokens": 40}


@pytest.fixture(scope="module", params=[False, True], ids=["normal", "overlap"])
def engine(tiny_llama, tmp_path_factory, request):
    cache = str(tmp_path_factory.mktemp("cache"))
    options = {"enable_overlap": request.param, "cache_dir": cache, "grammar_backend": "fsm"}
    with Engine(model=str(tiny_llama), **options) as made:
        yield made


@pytest.fixture(scope="module", params=[False, True], ids=["normal", "overlap"])
def scripted(smollm2, tmp_path_factory, request):
    """An engine whose model wants to write JSON with blanks of its own."""
    folder = tmp_path_factory.mktemp("script")
    file = folder / "script.json"
    wanted = '{ "name_of_the_city":"Linz", "population_in_thousands": 214, "country":"AT"}'
    responses = [{"prompt_ids": [], "output": wanted}]
    file.write_text(json.dumps({"tokenizer": str(smollm2), "responses": responses}))
    with Engine(
        model=f"scripted:{file}",
        enable_overlap=request.param,
        cache_dir=str(folder),
        grammar_backend="fsm",
    ) as made:
        yield made


class TestOutputs:
    def test_each_output_keeps_to_its_constraint(self, engine):
        results = engine.generate(
            "call", {**SAMPLED, "n": 8, "seed": 1}, constraint=Constraint.regex(PHONE)
        )
        for result in results:
            assert re.fullmatch(PHONE, result["text"]), result["text"]
            assert result["meta_info"]["finish_reason"]["type"] == "stop"
        assert len({result["text"] for result in results}) == 8

    def test_constraints_are_given_among_the_parameters_too(self, engine):
        asked = ({"regex": "[ab]{9}"}, {"choices": ["yes", "no"]}, {}, {"regex": PHONE})
        results = engine.generate(["x"] * 4, [{**SAMPLED, "seed": 3, **each} for each in asked])
        assert re.fullmatch("[ab]{9}", results[0]["text"])
        assert results[1]["text"] in ("yes", "no")
        assert not re.fullmatch(PHONE, results[2]["text"])
        assert re.fullmatch(PHONE, results[3]["text"])

    def test_others_in_the_batch_get_what_they_get_alone(self, engine):
        free = {"temperature": 0, "max_new_tokens": 24}
        alone = engine.generate("abc", free)["output_ids"]
        among = engine.generate(["abc"] * 3, [free, {**free, "regex": PHONE}, free])
        assert [among[0]["output_ids"], among[2]["output_ids"]] == [alone, alone]
        assert re.fullmatch(PHONE, among[1]["text"])

    def test_a_constrained_output_is_the_same_alone_and_in_a_batch(self, engine):
        params = [{**SAMPLED, "seed": i, "regex": PHONE} for i in range(6)]
        alone = [engine.generate("abc", each)["output_ids"] for each in params]
        together = engine.generate(["abc"] * 6, params)
        assert [result["output_ids"] for result in together] == alone

    def test_streamed_and_whole_are_one(self, engine):
        params = {**SAMPLED, "seed": 5, "regex": PHONE}
        whole = engine.generate("abc", params)
        deltas = list(engine.generate("abc", params, stream=True))
        assert "".join(delta["text"] for delta in deltas) == whole["text"]

    def test_asyncio(self, engine):
        async def both():
            params = {**SAMPLED, "seed": 5, "regex": PHONE}
            whole = await engine.async_generate("abc", params)
            streamed = [delta["text"] async for delta in engine.async_stream("abc", params)]
            return whole["text"], "".join(streamed)

        whole, streamed = asyncio.run(both())
        assert whole == streamed
        assert re.fullmatch(PHONE, whole)

    def test_penalties_biases_and_logprobs_go_with_a_constraint(self, engine):
        result = engine.generate(
            "abc",
            {
                "temperature": 0.8,
                "max_new_tokens": 40,
                "frequency_penalty": 0.5,
                "repetition_penalty": 1.1,
                "logit_bias": {"60": 5.0},
                "top_logprobs": 2,
                "regex": PHONE,
            },
        )
        assert re.fullmatch(PHONE, result["text"])
        chosen = result["meta_info"]["output_token_logprobs"]
        assert [token for _, token in chosen] == result["output_ids"]
        # Of the model's own distribution: what a mask leaves is not made likely by it.
        assert min(logprob for logprob, _ in chosen) < -1


class TestSteering:
    def test_an_output_ends_within_its_tokens(self, engine):
        for seed in range(6):
            params = {"temperature": 1.2, "max_new_tokens": 12, "seed": seed}
            result = engine.generate("abc", {**params, "regex": r"<[a-z]{2,200}>"})
            assert re.fullmatch(r"<[a-z]{2,200}>", result["text"])
            assert result["meta_info"]["finish_reason"]["type"] == "stop"

    def test_without_it_the_output_is_cut(self, engine):
        params = {"temperature": 1.2, "max_new_tokens": 12, "seed": 0}
        params["grammar_options"] = {"steering": False}
        result = engine.generate("abc", {**params, "regex": r"<[a-z]{100,200}>"})
        assert result["meta_info"]["finish_reason"]["type"] == "length"


class TestRefusals:
    def test_a_constraint_that_cannot_be_used_is_told_before_anything_runs(self, engine):
        bad = Constraint.regex("(a")
        with pytest.raises(ValueError, match="constraint"):
            engine.generate("abc", SAMPLED, constraint=bad)
        with pytest.raises(ValueError, match="constraint"):
            asyncio.run(engine.async_generate("abc", SAMPLED, constraint=bad))

    def test_a_schema_that_nothing_satisfies_is_refused(self, engine):
        with pytest.raises(ValueError, match="json_schema"):
            engine.generate("abc", {**SAMPLED, "json_schema": False})

    def test_who_is_cancelled_while_compiling_ends_the_work(
        self, tiny_llama, tmp_path, monkeypatch
    ):
        """The worker holds a pipe open until it is killed, since its constraint never is done."""
        monkeypatch.syspath_prepend(str(Path(__file__).parent))
        pipe = tmp_path / "pipe"
        os.mkfifo(pipe)
        held, free = threading.Event(), threading.Event()

        def watch():
            with open(pipe) as reader:
                assert reader.readline() == "held\n"
                held.set()
                reader.read()
                free.set()

        async def leave(engine):
            asked = Constraint.regex(f"hold {pipe}")
            task = asyncio.ensure_future(engine.async_generate("a", SAMPLED, constraint=asked))
            assert await asyncio.to_thread(held.wait, 60)
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled()
            assert await asyncio.to_thread(free.wait, 60), "the worker works on for nobody"

        watcher = threading.Thread(target=watch)
        watcher.start()
        options = {"cache_dir": str(tmp_path), "grammar_backend": "crashing_backend:create"}
        with Engine(model=str(tiny_llama), **options) as engine:
            asyncio.run(leave(engine))
        watcher.join()

    def test_two_constraints_are_refused(self, engine):
        with pytest.raises(ValueError, match="regex was given beside constraint"):
            engine.generate("a", {"regex": "a"}, constraint=Constraint.regex("b"))

    def test_an_engine_without_a_backend_refuses_all(self, tiny_llama):
        with Engine(model=str(tiny_llama), grammar_backend="none") as engine:
            with pytest.raises(ValueError, match="grammar_backend none"):
                engine.generate("a", {"regex": "a"})
            assert (
                engine.generate("a", {"max_new_tokens": 2})["meta_info"]["completion_tokens"] == 2
            )


class TestJumpForward:
    """With the default model's tokenizer: forced text has its tokens, jumped over or not."""

    def generate(self, engine, jump, **params):
        options = {"jump_forward": jump}
        params = {"temperature": 0, "max_new_tokens": 90, "grammar_options": options, **params}
        return engine.generate("A city", params, constraint=Constraint.json_schema(CITY))

    def test_the_same_text_and_tokens_on_and_off(self, scripted):
        on, off = self.generate(scripted, True), self.generate(scripted, False)
        assert on["output_ids"] == off["output_ids"]
        assert set(json.loads(on["text"])) == set(CITY["properties"])
        saved = on["meta_info"]["jump_forward_tokens"]
        assert saved >= 0.3 * on["meta_info"]["completion_tokens"]
        assert "jump_forward_tokens" not in off["meta_info"]

    def test_forced_text_has_the_tokens_of_the_tokenizer(self, scripted):
        ids = self.generate(scripted, True)["output_ids"]
        key = scripted.tokenizer.encode("name_of_the_city", add_special_tokens=False)
        assert any(ids[i : i + len(key) - 1] == key[:-1] for i in range(len(ids)))

    def test_who_wants_logprobs_does_not_jump(self, scripted):
        result = self.generate(scripted, True, top_logprobs=0)
        assert len(result["meta_info"]["output_token_logprobs"]) == len(result["output_ids"])
        assert "jump_forward_tokens" not in result["meta_info"]
        json.loads(result["text"])
