"""How the figures of this benchmark are told, a line each."""

from __future__ import annotations

from benchmarks.kernels.machine import Machine
from benchmarks.kernels.peaks import Peaks
from benchmarks.report import Figures

OPS_HEAD = (
    f"{'op':<36} {'threads':>7} {'cpu us':>10} {'torch us':>10} {'faster':>7}  of the machine"
)
STEPS_HEAD = (
    f"{'decode step':<32} {'threads':>7} {'ms':>7} = x parts"
    f" ({'products':>8} + {'KV':>5} + {'attention':>9}) {'outside':>8} {'in an engine':>13}"
)


def machine_line(m: Machine) -> str:
    """What the machine can do."""
    threads = "1 thread" if m.threads == 1 else f"{m.threads} threads"
    return (
        f"{threads}: {m.read / 1e9:.1f} GB/s read, {m.fma / 1e9:.0f} GFLOP/s float32, "
        f"{m.dot / 1e9:.0f} GOP/s int8"
    )


def peaks_lines(peaks: Peaks) -> list[str]:
    """The same, and whether it may be too little."""
    line = machine_line(peaks.machine)
    if peaks.complete:
        return [line]
    return [
        line,
        f"others used the machine: its {peaks.machine.threads} threads never had more than "
        f"{peaks.cores:.1f} cores while it was probed, so these peaks may be too low, and shares "
        "of them too high",
    ]


def op_line(op: Figures) -> str:
    """One op: both times, and how near it is to what bounds it."""
    return (
        f"{op['op']:<36} {op['threads']:>7} {op['cpu_s'] * 1e6:>10.1f}"
        f" {op['torch_s'] * 1e6:>10.1f} {op['times_faster']:>6.1f}x"
        f"  {op['share_of_roof']:>5.0%} {op['bound']}"
    )


def step_line(step: Figures) -> str:
    """One decode step: its time, how many times its parts that is, and the parts."""
    name = f"{step['weights']}, KV {step['kv']}, {step['batch']} x {step['context']}"
    return (
        f"{name:<32} {step['threads']:>7} {step['step_s'] * 1e3:>7.2f} = {step['ratio']:>4.2f}    "
        f" ({step['products_s'] * 1e3:>8.2f} + {step['kv_s'] * 1e3:>5.2f}"
        f" + {step['attention_s'] * 1e3:>9.2f}) {step['outside_share']:>8.1%}"
        f" {step['engine_outside_share']:>13.1%}"
    )
