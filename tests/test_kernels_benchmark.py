"""The benchmark of kernels: what a machine needs at least, how calls take turns, all figures."""

from __future__ import annotations

import itertools
import json
import math
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.kernels import step
from benchmarks.kernels.__main__ import main, measure_ops
from benchmarks.kernels.attention import attention_work, slots_of
from benchmarks.kernels.engine import EngineStep
from benchmarks.kernels.machine import Machine, Probed, Work, parts_of
from benchmarks.kernels.peaks import Peaks
from benchmarks.kernels.shapes import Shapes
from benchmarks.kernels.step import Measured, StepTimes, forms_of
from benchmarks.kernels.tables import peaks_lines
from benchmarks.kernels.timing import ROUNDS, best, medians
from phloem.kernels import automatic_backend, get_ops
from phloem.kernels.cpu_backend.linear import CpuLinear
from phloem.model_runner import ModelSourceError

MACHINE = Machine(threads=1, read=10.0, fma=100.0, dot=1000.0)

TINY = Shapes(
    hidden=64,
    intermediate=96,
    vocab=200,
    heads=4,
    kv_heads=2,
    head_dim=16,
    layers=2,
    linears=((128, 64), (64, 96)),
    rows=(1, 3),
    decodes=((1, 5, 0), (3, 70, 64)),
    extends=((4, 9),),
    sampled=(2,),
    cold_bytes=1 << 12,
)


@pytest.fixture
def native():
    if automatic_backend() != "cpu":
        pytest.skip("the cpu backend cannot run here")


class Options:
    quick = False
    seconds = 1e-6


def test_work_takes_as_long_as_the_slowest_part_of_it():
    work = Work(bytes=20.0, fma=100.0, dot=5000.0)
    assert work.least(MACHINE) == 5.0
    assert work.bound(MACHINE) == "dot"
    assert work.arithmetic(MACHINE) == 6.0
    assert Work(bytes=20.0, fma=100.0).bound(MACHINE) == "memory"


TIMES = StepTimes(
    step=12.0,
    products=6.0,
    kv=3.0,
    attention=1.0,
    outside=0.6,
    engine_step=12.5,
    engine_outside=0.5,
)


def test_a_step_is_compared_with_the_sum_of_its_parts():
    assert TIMES.ratio == pytest.approx(1.2)
    assert TIMES.outside_share == pytest.approx(0.05)
    assert TIMES.engine_outside_share == pytest.approx(0.04)


def probing(*seen):
    left = [Probed(Machine(2, read, fma, dot), cores) for read, fma, dot, cores in reversed(seen)]
    return lambda seconds: left.pop()


def test_probes_that_had_too_few_cores_are_made_again_and_the_best_counts():
    peaks = Peaks(probing((9, 118, 472, 1.1), (8, 118, 940, 1.2), (7, 236, 472, 1.9)), 1e-6)
    assert peaks.machine == Machine(2, 9, 236, 940)
    assert peaks.complete
    few = Peaks(probing(*[(9, 118, 472, 1.1)] * 5), 1e-6)
    assert not few.complete
    assert "never had more than 1.1 cores" in peaks_lines(few)[1]


def test_what_was_measured_before_a_peak_rose_is_told_again_beside_it():
    told = []
    engine = EngineStep(12.5, 0.5)
    measured = Measured(12.0, 6.0, 0.6, Work(bytes=20.0, fma=200.0).times(2), engine)
    peaks = Peaks(probing((10, 100, 100, 2.0), (10, 101, 100, 2.0), (5, 200, 100, 2.0)), 1e-6)
    before = peaks.machine
    assert peaks.settled(before, [measured.beside], told.append)[0].kv == 4.0
    assert not told
    (after,) = peaks.settled(before, [measured.beside], told.append)
    assert told == [after]
    assert after == replace(TIMES, kv=4.0, attention=2.0)


@pytest.mark.parametrize("timed", [medians, best])
def test_calls_are_made_in_turns(timed):
    made = []
    calls = [lambda name=name: made.append(name) for name in "ab"]
    times = timed(calls, 1e-6)
    assert "".join(name for name, _ in itertools.groupby(made)) == "ab" * ROUNDS
    assert len(times) == 2
    assert min(times) >= 0.0


def test_attention_reads_shared_slots_once_and_multiplies_them_for_each_request():
    alone = attention_work(TINY, torch.float32, slots_of(3, 70, 0), 1)
    shared = attention_work(TINY, torch.float32, slots_of(3, 70, 64), 1)
    assert alone.fma == shared.fma == 4 * 3 * 70 * 4 * 16
    assert alone.bytes - shared.bytes == 2 * 64 * (2 * 2 * 16 * 4)


def test_a_query_of_an_extend_sees_what_is_before_it():
    work = attention_work(TINY, torch.int8, slots_of(1, 9, 0), 4)
    assert work.dot == 4 * (6 + 7 + 8 + 9) * 4 * 16


@pytest.mark.usefixtures("native")
@pytest.mark.parametrize("form", ["float", "int8", "int4"])
def test_the_parts_of_a_weight_multiply_as_the_whole_does(form):
    ops = get_ops("cpu", threads=1)
    n = 2 * 4096 + 40
    whole = ops.prepare_linear(torch.randn(n, 64), torch.randn(n), form)
    x = torch.randn(2, 64)
    parts = [CpuLinear(part, whole.packed, whole.bias) for part in parts_of(whole)]
    assert [part.n for part in parts] == [4096, 4096, 40]
    assert torch.equal(torch.cat([ops.linear(x, part) for part in parts], 1), ops.linear(x, whole))


@pytest.mark.usefixtures("native")
def test_every_op_is_measured_on_both_backends():
    lines = []
    peaks = Peaks(lambda seconds: Probed(MACHINE, 1.0), 1e-6)
    found = measure_ops(Options, peaks, lines.append, TINY)
    ops = [one["op"].split(" [")[0] for one in found]
    expected = {"rms_norm", "add_rms_norm", "silu_mul", "rotary_store_kv", "plan_attention"}
    expected |= {"argmax", "top_k 50", "top_p 0.9", "logprobs"}
    expected |= {f"{op} {kv}" for op in ("decode", "extend") for kv in ("fp32", "bf16", "int8")}
    expected |= {
        f"linear {kind} {k}->{n}" for kind in ("F32", "I8", "Q8", "Q4") for n, k in TINY.linears
    }
    assert set(ops) == expected
    assert len(lines) == len(found) + 1
    for one in found:
        numbers = (one["cpu_s"], one["torch_s"], one["times_faster"], one["share_of_roof"])
        assert all(math.isfinite(number) and number > 0 for number in numbers)


@pytest.mark.usefixtures("native")
def test_steps_of_a_model_are_one_line_of_json(tiny_llama, capsys):
    main(
        [
            *("--json", "--quick", "--only", "steps", "--threads", "1", "--seconds", "0.01"),
            *("--model", str(tiny_llama), "--forms", "none", "gguf", "--kv", "int8"),
        ]
    )
    (line,) = capsys.readouterr().out.splitlines()
    figures = json.loads(line)
    assert figures["ops"] == []
    assert [m["threads"] for m in figures["machine"]] == [1]
    assert min(figures["machine"][0].values()) > 0
    steps = figures["steps"]
    assert [(s["weights"], s["batch"]) for s in steps] == list(
        itertools.product(("none", "int4"), (1, 16))
    )
    for one in steps:
        assert 0 < one["outside_s"] < one["step_s"]
        assert 0 < one["engine_outside_s"] < one["engine_step_s"]
        assert one["products_s"] > 0
        assert one["ratio"] > 0


def test_a_model_without_a_gguf_file_has_four_bits_instead(tiny_llama):
    assert forms_of(tiny_llama, ["gguf", "int8", "none"]) == ["int4", "int8", "none"]


@pytest.mark.usefixtures("native")
def test_a_random_model_takes_the_place_of_one_that_is_not_here(monkeypatch):
    def nowhere(*args, **kwargs):
        raise ModelSourceError("there is none")

    monkeypatch.setattr(step, "resolve_model", nowhere)
    monkeypatch.setattr(step, "Shapes", lambda: TINY)
    said = []
    with step.model_folder(None, said.append) as folder:
        weights = step.Stage(folder, "int8", 1).weights
    assert [weight.shape for weight in weights] == [
        *((128, 64), (64, 64), (192, 64), (64, 96)) * TINY.layers,
        (200, 64),
    ]
    assert said == ["a random model takes the place of SmolLM2: there is none"]
    assert not folder.exists()


def test_a_team_of_no_threads_is_refused(capsys):
    with pytest.raises(SystemExit):
        main(["--threads", "0,1"])
    assert "has no team of threads" in capsys.readouterr().err
