"""The device script, as far as it goes without a device."""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

from phloem.kernels.triton_backend.ops import TritonOps

SCRIPT = Path(__file__).parents[4] / "scripts" / "check_gpu.py"
if not SCRIPT.is_file():
    pytest.skip("scripts/check_gpu.py is in a checkout only", allow_module_level=True)


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("check_gpu", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["check_gpu"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules["check_gpu"]


@pytest.fixture
def tiny(script):
    model = script.Model("tiny", 96, 64, 6, 2, 64, 300)
    load = script.Load(tokens=(3,), decodes=((2, 20),), extends=((1, 20, 30),), sampled=1)
    return model, load


def results(script, tiny, ops, without="nothing"):
    model, load = tiny
    peaks = script.Peaks(1e9, 1e9)
    return [
        script.examine(case, ops, model.name, peaks, 0.0)
        for case in script.cases(ops, model, load, torch.float32, "cpu")
        if not case.op.startswith(without)
    ]


def test_every_case_runs_and_is_right(script, tiny):
    found = results(script, tiny, TritonOps())
    assert [r for r in found if not r.ok] == []
    operations = {r.op for r in found}
    assert {"attention decode", "attention extend", "attention, each row alone"} < operations
    assert {"rms_norm", "add_rms_norm", "silu_mul", "rotary_store_kv", "greedy"} < operations
    assert {"apply_token_bitmask", "sample, top_k", "sample, top_p"} < operations
    assert len(list(script.lines(found))) == len(found) + 1
    attention = next(r for r in found if r.op == "attention extend")
    # 11 + ... + 30 positions for each of 6 heads of 64, a multiplication and an addition, twice.
    assert attention.bound_microseconds == pytest.approx(1e-3 * 4 * 410 * 6 * 64)


def test_a_wrong_kernel_is_found(script, tiny):
    class Wrong(TritonOps):
        def silu_mul(self, gate_up):
            return super().silu_mul(gate_up) * 1.01

        def greedy(self, logits):
            return super().greedy(logits) * 0

    wrong = [
        r
        for r in results(script, tiny, Wrong(), without=("sample", "attention", "rotary"))
        if not r.ok
    ]
    assert {r.op for r in wrong} == {"silu_mul", "greedy"}
    assert any("WRONG" in line for line in script.lines(wrong))


def test_nan_is_a_difference(script):
    assert script.difference(torch.tensor([1.0, float("nan")]), torch.ones(2)) == float("inf")
    assert script.difference(torch.tensor([1, 2, 3, 4]), torch.tensor([1, 2, 3, 5])) == 0.25


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so_and_claims_nothing(script, capsys):
    assert script.main([]) == 2
    assert "no GPU: " in capsys.readouterr().out
