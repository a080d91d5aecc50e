"""The simulator's command line, its table, its JSON and its chart."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree

import pytest

from phloem.scheduler.simulation import CostModel, Setup, chart, read_trace, table
from phloem.scheduler.simulation.cli import main
from phloem.scheduler.simulation.figures import Figures, Outcome

FIGURES = Figures(
    *(9, 0, 0, 2.0, 900, 90, 45.0, 495.0, 0.5, 3),
    *(0.1, 0.2, 0.01, 0.02, 0.5, 0.9, 0.0, 0.05, 40, 0.8, 4.5, 7),
)


def outcome(**setup):
    return Outcome(Setup(CostModel(0.01), **setup), FIGURES)


@pytest.fixture
def simulator(capsys):
    """Runs the command line: exit status, standard output, standard error."""

    def run(*arguments):
        try:
            code = main(list(arguments))
        except SystemExit as exit:
            code = exit.code
        return code, *capsys.readouterr()

    return run


def test_configurations_are_compared_in_all_combinations(simulator, tmp_path):
    code, out, err = simulator(
        *("simulate", "shared-prefix:requests=40", "--policy", "fcfs,lpm", "--pool", "8k,16k"),
        *("--chunk", "512", "--set", "aging_tokens=16", "--json", str(tmp_path / "out.json")),
        *("--plot", str(tmp_path / "out.svg")),
    )
    assert code == 0, err
    for name in ("fcfs, pool 8Ki", "fcfs, pool 16Ki", "lpm, pool 8Ki", "lpm, pool 16Ki"):
        assert name in out
    # What they have in common is said once.
    assert out.count("chunk 512") == 1
    assert "aging_tokens 16" in out
    report = json.loads((tmp_path / "out.json").read_text())
    assert (report["trace"], report["warm"]) == ("shared-prefix:requests=40", False)
    assert [each["setup"]["pool_tokens"] for each in report["outcomes"]] == [8192, 16384] * 2
    assert all(each["figures"]["requests"] == 40 for each in report["outcomes"])
    ElementTree.parse(tmp_path / "out.svg")


def test_steps_taken_singly_give_the_same_report(simulator, tmp_path):
    reports = []
    for more in ([], ["--every-step"]):
        path = tmp_path / "out.json"
        assert simulator("simulate", "mixed:requests=60", "--json", str(path), *more)[0] == 0
        reports.append(path.read_text())
    assert reports[0] == reports[1]


def test_a_bundled_trace_is_written_as_lines_that_can_be_simulated(simulator, tmp_path):
    code, out, _ = simulator("trace", "agents:requests=30,rate=9")
    assert code == 0
    assert len(read_trace(out.splitlines(), "out")) == 30
    (tmp_path / "agents.jsonl").write_text(out)
    options = ("--replicas", "2", "--router", "all")
    from_file = simulator("simulate", str(tmp_path / "agents.jsonl"), *options)[1]
    bundled = simulator("simulate", "agents:requests=30,rate=9", *options)[1]
    assert from_file.splitlines()[1:] == bundled.splitlines()[1:]
    assert "cache-aware" in bundled


def test_a_second_replay_finds_what_the_first_left(simulator):
    cold, warm = (simulator("simulate", "w3", *more)[1] for more in ([], ["--warm"]))
    assert "99.9%" in warm
    assert "99.9%" not in cold


def test_requests_can_be_let_arrive_faster(simulator, tmp_path):
    path = tmp_path / "out.json"
    durations = []
    for speed in ("1", "4"):
        options = ("--speed", speed, "--json", str(path))
        assert simulator("simulate", "shared-prefix:requests=60,rate=1", *options)[0] == 0
        durations.append(json.loads(path.read_text())["outcomes"][0]["figures"]["duration_s"])
    assert durations[1] < durations[0] / 3


def test_switches_are_compared_by_their_names(simulator):
    lines = simulator("simulate", "w4", "--mixed", "on,off")[1].splitlines()
    assert [line.split("  ")[0] for line in lines[-2:]] == ["mixed on", "mixed off"]


def test_all_policies_can_be_asked_for(simulator):
    code, out, _ = simulator("simulate", "w4", "--policy", "all")
    assert code == 0
    assert "fcfs" in out
    assert "lpm" in out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["simulate", "no-such.jsonl"], "there is no trace 'no-such.jsonl'"),
        (["simulate", "w4", "--policy", "best"], "'best' is unknown"),
        (["simulate", "w4", "--router", "best"], "'best' is unknown"),
        (["simulate", "w4", "--mixed", "yes"], "'yes' is unknown"),
        (["simulate", "w4", "--pool", "lots"], "'lots' is no size"),
        (["simulate", "w4", "--pool", "0"], "'0' is no size"),
        (["simulate", "w4", "--speed", "0"], "'0' is no factor"),
        (["simulate", "w4", "--set", "aging"], "'aging' is no setting"),
        (["simulate", "w4", "--set", "ageing=1"], "'ageing' is no setting of the scheduler"),
        (["simulate", "w4", "--set", "aging_tokens=-1"], "aging_tokens is -1"),
        (["simulate", "w4", "--set", "aging_tokens=x"], "aging_tokens is 'x': give an integer"),
        (["simulate", "w4", "--set", "schedule_conservativeness=NaN"], "is nan: give more than 0"),
        (["simulate", "w4", "--json", "no/such/folder/a.json"], "a.json cannot be written"),
        (["simulate", "w4", "--plot", "."], ". cannot be written"),
        (["simulate", "w4", "--cost-model", "abacus"], "no cost model 'abacus'"),
        (["simulate", "w4", "--page", "3"], "no power of two"),
        (["simulate", "w4", "--page", "16", "--chunk", "24"], "does not divide"),
        (["trace", "w9"], "no trace 'w9'"),
        ([], "COMMAND"),
    ],
)
def test_what_cannot_be_done_ends_with_2_and_a_sentence(simulator, arguments, says):
    code, _, err = simulator(*arguments)
    assert code == 2
    assert says in err


def test_a_file_that_cannot_be_written_is_refused_before_anything_is_simulated(
    simulator, tmp_path, monkeypatch
):
    def never(*arguments, **options):
        raise AssertionError("it was simulated")

    monkeypatch.setattr("phloem.scheduler.simulation.cli.simulate", never)
    for option in ("--json", "--plot"):
        code, out, err = simulator("simulate", "w4", option, str(tmp_path / "none" / "out"))
        assert (code, out) == (2, "")
        assert err.count("\n") == 1


def test_a_bad_trace_file_is_named_with_its_line(simulator, tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_text('{"prompt": [1], "output": 1}\n{"prompt": [1]}\n')
    code, _, err = simulator("simulate", str(path))
    assert code == 2
    assert f"{path}, line 2: output is None" in err


# The table and the chart.


def test_a_table_names_what_differs_and_a_lone_line_by_its_policy():
    lines = table([outcome(), outcome(replicas=4)]).splitlines()
    assert [line.split("  ")[0] for line in lines[1:]] == ["replicas 1", "replicas 4"]
    assert table([outcome(policy="lpm")]).splitlines()[1].startswith("lpm")
    assert "45" in lines[1]
    assert "50.0%" in lines[1]
    assert "0.1/0.2" in lines[1]


def texts(svg):
    return [e.text for e in ElementTree.fromstring(svg).iter() if e.tag.endswith("text")]


def count(svg, tag):
    return sum(e.tag.endswith(tag) for e in ElementTree.fromstring(svg).iter())


def test_a_chart_over_a_number_has_a_line_for_each_of_the_rest():
    svg = chart(
        "a <trace>",
        [outcome(policy=p, pool_tokens=n) for p in ("fcfs", "lpm") for n in (1024, 2048, 5000)],
    )
    assert count(svg, "polyline") == 4 * 2
    assert count(svg, "circle") == 4 * 2 * 3
    assert {"a <trace>", "fcfs", "lpm", "1Ki", "2Ki", "5000", "pool"} <= set(texts(svg))


def test_a_chart_of_names_has_bars():
    svg = chart("t", [outcome(policy="fcfs"), outcome(policy="lpm")])
    assert count(svg, "polyline") == 0
    # Of each panel two bars; two keys; the background.
    assert count(svg, "rect") == 4 * 2 + 2 + 1
    assert "TTFT p99, s" in texts(svg)


def test_a_chart_of_one_configuration_is_drawn_too():
    assert count(chart("t", [outcome()]), "rect") == 4 + 1 + 1
