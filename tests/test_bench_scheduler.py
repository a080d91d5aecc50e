"""The benchmark of the scheduler, tiny: that it runs and gives the figures that are promised."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_a_tiny_run_gives_all_figures_as_json():
    options = ("--running", "6", "--waiting", "9", "--steps", "5", "--seconds", "0.1", "--json")
    run = subprocess.run(
        [sys.executable, "-m", "benchmarks.scheduler", *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    figures = json.loads(run.stdout)
    for prefix in ("", "page16_", "overlap_"):
        parts = ("p50", "p99", "news", "prefill", "decode", "arrays", "process")
        assert all(figures[f"{prefix}{part}_ms"] >= 0 for part in parts)
    assert figures["arrivals_cpu_s_per_s"] > 0
    assert figures["arrivals_finished_per_s"] > 0
