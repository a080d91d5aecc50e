"""The cache below the device as users see it: answers are the same, and prefixes found again."""

from __future__ import annotations

import json
import random
import shutil

import httpx
import pytest

from phloem.server import Engine

GREEDY = {"temperature": 0, "max_new_tokens": 8}
RNG = random.Random(5)
SHARED = [[RNG.randrange(1, 257) for _ in range(150)] for _ in range(6)]
PROMPTS = [[*SHARED[i % 6], *(RNG.randrange(1, 257) for _ in range(10))] for i in range(24)]
POOL = 400
"""Tokens of the device: a third of what the prompts share and end with."""


@pytest.fixture(scope="module")
def other_llama(tiny_llama, tmp_path_factory):
    """`tiny_llama`'s config with other weights."""
    import torch
    from transformers import LlamaForCausalLM

    folder = tmp_path_factory.mktemp("other-llama") / "model"
    shutil.copytree(tiny_llama, folder)
    model = LlamaForCausalLM.from_pretrained(tiny_llama, dtype=torch.float32)
    with torch.no_grad():
        model.model.layers[0].self_attn.k_proj.weight.neg_()
    model.save_pretrained(folder)
    return folder


def answers(engine, prompts=PROMPTS, **options):
    """One after the other, so that each may find what the ones before it left."""
    return [engine.generate(None, GREEDY, input_ids=p, **options) for p in prompts]


def tokens(results):
    return [result["output_ids"] for result in results]


def cached(results):
    return sum(result["meta_info"]["cached_tokens"] for result in results)


def check_nothing_is_held(engine):
    def look(scheduler):
        report = scheduler.manager.check()
        assert scheduler.manager.available + report.host.copying >= scheduler.manager.capacity
        return scheduler.manager.tiers

    return engine._driver.call(look)


@pytest.fixture(scope="module")
def plain(tiny_llama):
    """The answers of an engine without tiers, and with memory for all."""
    with Engine(model=str(tiny_llama)) as engine:
        return tokens(answers(engine))


@pytest.mark.parametrize(
    ("page_size", "overlap", "beside"),
    [(1, False, False), (16, True, False), (1, True, True), (16, False, True)],
)
def test_answers_are_the_same_and_what_the_device_let_go_is_found(
    tiny_llama, plain, page_size, overlap, beside, monkeypatch
):
    if beside:  # as on a GPU: each layer is waited for in the step that uses it
        monkeypatch.setattr("phloem.server.kv_memory.loads_beside", lambda device: True)
    with Engine(
        model=str(tiny_llama),
        max_total_tokens=POOL,
        page_size=page_size,
        host_cache_gb=0.01,
        enable_overlap=overlap,
        chunked_prefill_size=64,
    ) as engine:
        first = answers(engine)
        again = answers(engine)
        together = engine.generate(None, GREEDY, input_ids=PROMPTS)
        tiers = check_nothing_is_held(engine)
    assert tokens(first) == tokens(again) == tokens(together) == plain
    possible = sum((len(p) - 1) // page_size * page_size for p in PROMPTS)
    assert cached(again) >= 0.9 * possible
    assert tiers.health.failures == 0


def test_a_restart_finds_whole_prompts_on_disk(tiny_llama, plain, tmp_path):
    options = {"model": str(tiny_llama), "disk_cache": str(tmp_path), "page_size": 16}
    with Engine(**options) as engine:
        answers(engine)
    with Engine(**options) as engine:
        again = answers(engine, PROMPTS[:6])
        assert check_nothing_is_held(engine).stats.restored > 0
    assert tokens(again) == plain[:6]
    for prompt, result in zip(PROMPTS, again, strict=False):
        assert len(prompt) - result["meta_info"]["cached_tokens"] <= 16


def test_a_server_that_is_ended_keeps_what_it_had_on_its_way_to_the_disk(tiny_llama, tmp_path):
    from phloem.server.background import running_server
    from phloem.server.config import ServerArgs
    from phloem.server.http_config import HttpArgs

    args = ServerArgs(model=str(tiny_llama), disk_cache=str(tmp_path))
    ask = {"input_ids": PROMPTS[0], "sampling_params": GREEDY}
    for cached_tokens in (0, len(PROMPTS[0]) - 1):
        with running_server(args, HttpArgs(port=0)) as server:
            answer = httpx.post(f"{server.url}/generate", json=ask, timeout=30).json()
        assert answer["meta_info"]["cached_tokens"] == cached_tokens


def test_salts_and_models_share_nothing_on_disk(tiny_llama, other_llama, plain, tmp_path):
    options = {"disk_cache": str(tmp_path)}
    with Engine(model=str(tiny_llama), **options) as engine:
        answers(engine, PROMPTS[:1], namespace=("salt",))
    with Engine(model=str(tiny_llama), **options) as engine:
        assert cached(answers(engine, PROMPTS[:1])) == 0
        assert cached(answers(engine, PROMPTS[:1], namespace=("other",))) == 0
        mine = answers(engine, PROMPTS[:1], namespace=("salt",))
        assert cached(mine) == len(PROMPTS[0]) - 1
        assert tokens(mine) == plain[:1]
    with Engine(model=str(other_llama), **options) as engine:
        assert cached(answers(engine, PROMPTS[:1], namespace=("salt",))) == 0


def test_damaged_files_cost_time_and_nothing_else(tiny_llama, plain, tmp_path):
    options = {"model": str(tiny_llama), "disk_cache": str(tmp_path)}
    with Engine(**options) as engine:
        answers(engine, PROMPTS[:6])
    for i, file in enumerate(sorted(tmp_path.rglob("*.kv"))):
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        file.write_bytes(content[: len(content) - i % 2] if i % 3 else b"somebody else's")
    with Engine(**options) as engine:
        assert tokens(answers(engine, PROMPTS[:6])) == plain[:6]


def test_a_tier_that_dies_costs_time_and_nothing_else(tiny_llama, plain, monkeypatch):
    from phloem.mem_pool.kv_transfer import KVTransfer

    with Engine(model=str(tiny_llama), max_total_tokens=POOL, host_cache_gb=0.01) as engine:
        assert tokens(answers(engine, PROMPTS[:12])) == plain[:12]

        def dead(*_):
            raise OSError("the host's memory is gone")

        monkeypatch.setattr(KVTransfer, "load", dead)
        monkeypatch.setattr(KVTransfer, "backup", dead)
        assert tokens(answers(engine)) == plain
        assert check_nothing_is_held(engine).health.off


def test_two_engines_use_one_folder(tiny_llama, plain, tmp_path):
    options = {"model": str(tiny_llama), "disk_cache": str(tmp_path)}
    with Engine(**options) as one, Engine(**options) as two:
        for prompts in (PROMPTS[:8], PROMPTS[8:16]):
            for engine in (one, two):
                at = PROMPTS.index(prompts[0])
                assert tokens(answers(engine, prompts)) == plain[at : at + len(prompts)]
        one.flush_cache()
        two.flush_cache()
    with Engine(**options) as again:
        found = cached(answers(again, PROMPTS[:16]))
    assert found >= 0.9 * sum(len(p) - 1 for p in PROMPTS[:16])


def test_a_scripted_model_has_tiers_too(tiny_llama, tmp_path):
    """Its pretended KV tells whose it is, so a slot that was copied wrongly would be noticed."""
    file = tmp_path / "script.json"
    script = {"tokenizer": str(tiny_llama), "responses": [{"prompt_ids": [], "output": "x" * 50}]}
    file.write_text(json.dumps(script))
    options = {
        "model": f"scripted:{file}",
        "max_total_tokens": POOL,
        "disk_cache": str(tmp_path / "disk"),
        "enable_overlap": True,
    }
    with Engine(**options) as engine:
        for _ in range(2):
            results = engine.generate(None, {**GREEDY, "ignore_eos": True}, input_ids=PROMPTS)
            assert {r["meta_info"]["finish_reason"]["type"] for r in results} == {"length"}
    with Engine(**options) as engine:
        result = engine.generate(None, GREEDY, input_ids=PROMPTS[0])
        # Of the prompts that differ in their last block only, one has it stored.
        assert result["meta_info"]["cached_tokens"] >= len(SHARED[0])


def test_idle_prefixes_expire(tiny_llama, tmp_path):
    with Engine(
        model=str(tiny_llama), host_cache_gb=0.01, cache_idle_ttl=1e-6, disk_cache=str(tmp_path)
    ) as engine:
        assert cached(answers(engine, [PROMPTS[0]] * 2)) == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"host_cache_gb": 0.0}, "host_cache_gb 0.0 is not positive"),
        ({"host_cache_gb": 1e6}, "host_cache_gb 1e.06 is more than"),
        ({"host_cache_gb": 1e-9}, "raise host_cache_gb"),
        ({"disk_cache_gb": 1.0}, "without a disk_cache"),
        ({"disk_cache": ""}, "give a folder"),
        ({"disk_cache": "/proc/nothing/here"}, "give a folder that this user may write to"),
        ({"cache_idle_ttl": -1.0}, "cache_idle_ttl -1.0 is not positive"),
        ({"disk_cache": "x", "disable_radix_cache": True}, "leave one of them"),
    ],
)
def test_options_that_cannot_be_had_are_refused_with_the_cure(tiny_llama, options, message):
    with pytest.raises(ValueError, match=message):
        Engine(model=str(tiny_llama), **options)
