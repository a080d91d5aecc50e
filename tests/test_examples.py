"""The examples run and show what they promise."""

from __future__ import annotations

import runpy
from pathlib import Path

EXAMPLES = Path(__file__).parents[1] / "examples"


def run(name, capsys):
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    return capsys.readouterr().out


def test_every_example_is_run_here():
    here = Path(__file__).read_text(encoding="utf-8")
    for example in EXAMPLES.glob("*.py"):
        assert f'run("{example.stem}"' in here, example


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
    assert "Paris" in out
    assert "blue" in out
    assert "Tokyo" in out
