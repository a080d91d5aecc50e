"""The examples run and show what they promise."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from phloem.radix_cache.analysis.cli import main as radix_cache_tool

EXAMPLES = Path(__file__).parents[1] / "examples"


def run(name, capsys):
    path = EXAMPLES / name
    runpy.run_path(str(path if path.is_dir() else path.with_suffix(".py")), run_name="__main__")
    return capsys.readouterr().out


def test_every_example_is_run_here():
    here = Path(__file__).read_text(encoding="utf-8")
    scripts = [path.stem for path in EXAMPLES.glob("*.py")]
    folders = [path.parent.name for path in EXAMPLES.glob("*/README.md")]
    for example in scripts + folders:
        assert f'run("{example}"' in here, example


def test_the_prefix_cache_alone(capsys):
    out = run("prefix_cache_alone", capsys)
    assert "second: 100 of 103" in out
    assert "again:  50 of 103" in out


def test_a_runner_of_your_own(capsys):
    out = run("your_own_runner", capsys).splitlines()
    assert out[0] == "the river runs to the river run"
    assert out[1] == "the river is wide and the river"


def test_many_prompts(smollm2, capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["many_prompts.py"])
    out = run("many_prompts", capsys)
    assert "Shakespeare" in out
    assert "blue" in out
    assert "Tokyo" in out


def test_structured_output(smollm2, capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["structured_output.py"])
    *people, first, second = run("structured_output", capsys).splitlines()
    assert "Maria, 34, lives in Porto" in people
    assert {first, second} <= {f"trade: {t}" for t in ("baker", "clockmaker", "gardener")}


def test_a_typed_client(smollm2, capsys):
    out = run("typed_client", capsys)
    assert "Paris" in out
    assert "Tokyo" in out
    assert "cached: 4 of 5 prompt tokens" in out


@pytest.mark.slow
def test_prefix_reuse_in_transformers(smollm2, capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["transformers_prefix_cache.py"])
    out = run("transformers_prefix_cache", capsys)
    assert "the answers are the same: True" in out
    assert "720 of 1131 prompt tokens were not computed again" in out


def test_a_vllm_like_runtime(capsys):
    out = run("vllm_like_runtime", capsys)
    assert "equal answers: True" in out
    assert "with one wrong block: False" in out


def test_prefix_analysis(capsys, monkeypatch, tmp_path):
    traffic = str(tmp_path / "requests.jsonl")
    monkeypatch.setattr("sys.argv", ["make_traffic.py", traffic, "200"])
    run("prefix_analysis/make_traffic", capsys)
    assert radix_cache_tool(["analyze", traffic]) == 0
    assert "moving 2 parts" in capsys.readouterr().out
