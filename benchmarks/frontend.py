"""CPU time of the server around the model: microseconds per output token, at many streams at once.

A scripted model stands in for a real one, so that what is left is HTTP, text and messages. Counted
is what the API process and the detokenizer process used by the operating system's account, over the
tokens that a load generator in a process of its own received. `load_generator_busy` is the share of
the time that this one was busy: near 1 it would have held the server back. `arrivals_per_token` is
1 where every token came by itself, and less where some of a stream came together, since the server
or the reader had fallen behind: tokens that are sent together are cheaper. The figures are those of
the round with the median cost; `load_average` is the machine's, over the last minute: CPU time
suffers less from other work than wall time, but it does, since caches are shared.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import psutil

from benchmarks.report import Figures, run
from phloem.model_runner.sources import resolve_model
from phloem.server.background import running_server
from phloem.server.bench.client import LoadClient, Target
from phloem.server.bench.figures import summarize
from phloem.server.bench.runner import run_workload
from phloem.server.bench.workloads import Conversation, TextMaker, Workload
from phloem.server.cli.remote import RemoteEngine
from phloem.server.config import ServerArgs
from phloem.server.file_limit import room_for_connections
from phloem.server.openai_wire import api_base
from phloem.server.tokenizer import Tokenizer

PROMPT_TOKENS = 32
WARM_UP_TOKENS = 8


def measure(options: argparse.Namespace, say: Callable[[str], None]) -> Figures:
    """The figures of the median round; CPU times are in microseconds per output token.

    Raises:
        ValueError: the system lets a process have too few connections.
    """
    if room_for_connections(options.streams) < options.streams:
        raise ValueError(
            f"{options.streams} streams need more open files than the system lets a process have: "
            "raise the hard limit (ulimit -Hn), or take fewer"
        )
    with tempfile.TemporaryDirectory() as folder:
        script = _write_script(Path(folder), options)
        args = ServerArgs(model=f"scripted:{script}", max_running_requests=options.streams)
        with (
            running_server(args) as server,
            ProcessPoolExecutor(1, get_context("spawn")) as other,
        ):
            processes = _processes(server.process.pid)
            # On few cores the model would crowd out what is measured, which would then send several
            # tokens of a stream at a time; this way more are sent alone, as in a server that keeps
            # up.
            processes["scheduler"].nice(19)

            def load(tokens: int) -> Figures:
                return other.submit(_load, server.url, options.streams, tokens).result()

            say(f"warming up {options.streams} streams")
            load(WARM_UP_TOKENS)
            rounds = []
            for number in range(options.rounds):
                say(f"round {number + 1}: {options.streams} streams of {options.tokens} tokens")
                rounds.append(_round(processes, lambda: load(options.tokens)))
                say(f"{rounds[-1]['cpu_us_per_token']:.1f} us per token")
    rounds.sort(key=lambda figures: figures["cpu_us_per_token"])
    return {
        "streams": options.streams,
        **rounds[len(rounds) // 2],
        "cpu_us_per_token_of_rounds": [round(each["cpu_us_per_token"], 1) for each in rounds],
        "load_average": os.getloadavg()[0],
    }


def _round(processes: dict[str, psutil.Process], load: Callable[[], Figures]) -> Figures:
    """The figures of one load."""
    before = {name: _cpu_seconds(process) for name, process in processes.items()}
    loaded = load()
    used = {name: _cpu_seconds(p) - before[name] for name, p in processes.items()}
    cost = {name: seconds / loaded["output_tokens"] * 1e6 for name, seconds in used.items()}
    return {
        "cpu_us_per_token": cost["api"] + cost["detokenizer"],
        **{f"{name}_cpu_us_per_token": value for name, value in cost.items()},
        **loaded,
    }


def _write_script(folder: Path, options: argparse.Namespace) -> Path:
    """A scripted model that tells everybody the same ordinary text, with room for all of them."""
    make = _text_maker()
    length = PROMPT_TOKENS + options.tokens
    script = {
        "pool_tokens": options.streams * (length + PROMPT_TOKENS),
        "step_ms": options.step_ms,
        "responses": [{"prompt_ids": [], "output_ids": list(make.encode(make.text(length, "a")))}],
    }
    file = folder / "script.json"
    file.write_text(json.dumps(script), encoding="utf-8")
    return file


def _text_maker() -> TextMaker:
    tokenizer = Tokenizer.from_folder(resolve_model("smollm2").path)
    return TextMaker(lambda text: tokenizer.encode(text, add_special_tokens=False), 0)


def _processes(pid: int) -> dict[str, psutil.Process]:
    """The server's processes by name; `pid` is its main one, which has the API."""
    api = psutil.Process(pid)
    processes = {"api": api}
    for child in api.children():
        for name in ("detokenizer", "scheduler"):
            if any(f"{name}_process" in argument for argument in child.cmdline()):
                processes[name] = child
    return processes


def _cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _load(url: str, streams: int, tokens: int) -> Figures:
    """Read `streams` streams at once; runs in the load generator's process."""
    make = _text_maker()
    with RemoteEngine(url) as server:
        target = Target(api_base(url), server.model)
    conversations = tuple(
        Conversation((make.text(PROMPT_TOKENS, tokens, i),), tokens) for i in range(streams)
    )

    async def read() -> Figures:
        async with LoadClient.open(target, make.encode) as client:
            start = time.process_time()
            answers, wall = await run_workload(client, Workload("", streams, conversations))
            busy = (time.process_time() - start) / wall
        figures = summarize(answers, wall)
        if figures.failed:
            raise RuntimeError(f"{figures.failed} streams failed: {figures.first_error}")
        return {
            "output_tokens": figures.output_tokens,
            "output_tokens_per_s": figures.output_tokens_per_s,
            "ttft_p50_ms": figures.ttft_p50_ms,
            "arrivals_per_token": sum(len(set(a.arrivals)) for a in answers)
            / figures.output_tokens,
            "itl_p50_ms": figures.itl_p50_ms,
            "itl_p99_ms": figures.itl_p99_ms,
            "wall_s": wall,
            "load_generator_busy": busy,
        }

    return asyncio.run(read())


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--streams", type=int, default=1000, help="streams at once")
    parser.add_argument("--tokens", type=int, default=128, help="output tokens of each")
    parser.add_argument(
        "--step-ms",
        type=float,
        default=0.0,
        help="what a step of the model takes at least; long enough, and no token waits for another",
    )
    parser.add_argument("--rounds", type=int, default=3, help="of which the median counts")


if __name__ == "__main__":
    run(__doc__, measure, _options)
