"""`phloem bench fit` against a real server without a model, and a simulation with what it wrote."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from phloem.scheduler.simulation import CostModel
from phloem.scheduler.simulation.cli import main as simulator
from phloem.server.background import running_server
from phloem.server.bench.workloads import TextMaker
from phloem.server.cli import main
from phloem.server.config import ServerArgs
from phloem.server.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def fitted(smollm2, tmp_path_factory):
    """What the command wrote of a server that always says the same."""
    tokenizer = Tokenizer.from_folder(smollm2)
    make = TextMaker(lambda text: tokenizer.encode(text, add_special_tokens=False), 0)
    folder = tmp_path_factory.mktemp("fit")
    script = {"responses": [{"prompt_ids": [], "output_ids": list(make.encode(make.text(2048)))}]}
    (folder / "script.json").write_text(json.dumps(script))
    with running_server(ServerArgs(model=f"scripted:{folder / 'script.json'}")) as server:
        done = CliRunner().invoke(
            main,
            [
                *("bench", "fit", "--base-url", server.url, "--tokenizer", "smollm2"),
                *("--longest", "256", "--at-once", "4", "--reps", "1"),
                *("--json", str(folder / "cost.json")),
            ],
        )
    assert done.exit_code == 0, done.output
    return done, folder / "cost.json"


def test_a_server_is_probed_and_a_cost_model_written(fitted):
    done, path = fitted
    report = json.loads(path.read_text())
    CostModel.from_dict(report["cost_model"])
    probes = {seen["probe"] for seen in report["observations"]}
    assert {"prefill 256", "extend 16 by 32", "decode 4 after 256"} <= probes
    assert all(seen["seconds"] > 0 for seen in report["observations"])
    assert "cost model" in done.stderr
    assert "decode 4 after 256" in done.stderr


def test_the_simulator_takes_it(fitted, capsys):
    _, path = fitted
    assert simulator(["simulate", "w4", "--cost-model", str(path), "--policy", "fcfs,lpm"]) == 0
    assert "lpm" in capsys.readouterr().out


def test_a_server_that_is_not_there_ends_with_2():
    done = CliRunner().invoke(main, ["bench", "fit", "--base-url", "http://127.0.0.1:1"])
    assert done.exit_code == 2
    assert "no server answers" in done.output
