"""The pace of a stream while hostile constraints are compiled beside it, over HTTP.

One client streams a completion, alone and then while another posts constraints that cannot be
served, one after the other, a pause after each is refused; and while one posts grammars in EBNF,
for the first of which the server has to load a library (these are served, in steps of the model
that they share with the stream). Figures are milliseconds between the pieces of the stream; `ratio`
is the median of the p99 beside a kind of constraint over that of the stream right before it,
`answered_s` the longest that one of them took, and `load` the machine's load when each began.
Rounds alone and beside each kind take turns. Run it on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import threading
import time
import uuid
from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import httpx
import numpy as np

from benchmarks.report import Figures, run
from phloem.server.background import running_server
from phloem.server.config import ServerArgs

PATH = "/v1/completions"
PATIENCE = 300.0
_PAUSE = 0.1
"""Seconds: what is refused at once is not to become a flood of requests."""


def nested_alternatives(depth: int) -> dict[str, Any]:
    """A schema of `oneOf` within `oneOf`, whose alternatives overlap."""
    levels: dict[str, Any] = {"at0": {"type": "object", "properties": {"x": {"type": "integer"}}}}
    for level in range(depth):
        inner = {"$ref": f"#/$defs/at{level}"}
        within = {"type": "object", "properties": {f"p{level}": inner}}
        required = {**within, "required": [f"p{level}"]}
        levels[f"at{level + 1}"] = {"oneOf": [within, required, {"not": inner}]}
    return {"$defs": levels, "$ref": f"#/$defs/at{depth}"}


# Each gets a text that it has not had, so that nothing is known from before.
HOSTILE: dict[str, Callable[[str], dict[str, Any]]] = {
    "repetition": lambda new: {"regex": f"{new}(a{{1,1000}}){{1,1000}}"},
    "ambiguous": lambda new: {"regex": f"{new}(x+x+)+y.{{400}}[a-z]{{0,400}}z(.*a.{{200}})"},
    "enum": lambda new: {"choices": [f"{new} {n} {n * n}" for n in range(60_000)]},
    "depth": lambda new: {"json_schema": '{"items":' * 5000 + f'{{"title":"{new}"}}' + "}" * 5000},
    "alternatives": lambda new: {"json_schema": {"title": new, **nested_alternatives(12)}},
    "ebnf": lambda new: {"ebnf": f'root ::= "{new}" [0-9]+'},
}


class Stream(NamedTuple):
    """What one stream was like."""

    gaps_ms: list[float]
    load: float
    """The machine's, when it began."""

    @property
    def p99(self) -> float:
        """Milliseconds that all but 1 % of the gaps stay below."""
        return float(np.percentile(self.gaps_ms, 99))


class Answers(NamedTuple):
    """What constraints came to that were posted while a stream went on."""

    statuses: set[int]
    longest_s: float
    times: int


def stream(url: str, tokens: int) -> Stream:
    """Stream a completion."""
    body = {"prompt": "Once upon a time", "max_tokens": tokens, "temperature": 0}
    body |= {"ignore_eos": True, "stream": True}
    load = os.getloadavg()[0]
    with httpx.stream("POST", url + PATH, json=body, timeout=PATIENCE) as response:
        response.raise_for_status()
        pieces = (line for line in response.iter_lines() if line.startswith("data: {"))
        times = [time.perf_counter() for _ in pieces]
    return Stream([(after - before) * 1e3 for before, after in pairwise(times)], load)


def beside(url: str, tokens: int, make: Callable[[str], dict[str, Any]]) -> tuple[Stream, Answers]:
    """Stream a completion while constraints are posted."""
    over, begun = threading.Event(), threading.Event()
    statuses: set[int] = set()
    seconds: list[float] = []

    def post() -> None:
        with httpx.Client(base_url=url, timeout=PATIENCE) as client:
            while not over.is_set():
                # Written beforehand, not to be at work here while it is compiled there.
                fields = {"prompt": "x", "max_tokens": 8, **make(uuid.uuid4().hex)}
                body = json.dumps(fields).encode()
                begun.set()
                begin = time.perf_counter()
                headers = {"Content-Type": "application/json"}
                statuses.add(client.post(PATH, content=body, headers=headers).status_code)
                seconds.append(time.perf_counter() - begin)
                over.wait(_PAUSE)

    poster = threading.Thread(target=post)
    poster.start()
    begun.wait()
    try:
        seen = stream(url, tokens)
    finally:
        over.set()
        poster.join()
    return seen, Answers(statuses, max(seconds), len(seconds))


def measure(options: argparse.Namespace, say: Callable[[str], None]) -> Figures:
    """All figures."""
    alone: list[Stream] = []
    others: dict[str, list[Stream]] = {kind: [] for kind in options.kinds}
    ratios: dict[str, list[float]] = {kind: [] for kind in options.kinds}
    answers: dict[str, list[Answers]] = {kind: [] for kind in options.kinds}
    with running_server(ServerArgs(model=options.model)) as server:
        stream(server.url, options.tokens)
        for _ in range(options.rounds):
            for kind in options.kinds:
                alone.append(stream(server.url, options.tokens))
                seen, answered = beside(server.url, options.tokens, HOSTILE[kind])
                others[kind].append(seen)
                ratios[kind].append(seen.p99 / alone[-1].p99)
                answers[kind].append(answered)
                say(
                    f"{kind}: p99 {seen.p99:.1f} ms, alone {alone[-1].p99:.1f} ms, "
                    f"{answered.times} answered {sorted(answered.statuses)}, load {seen.load:.1f}"
                )
    figures: Figures = {
        "alone_p50_ms": statistics.median(gap for each in alone for gap in each.gaps_ms),
        "alone_p99_ms": statistics.median(each.p99 for each in alone),
        "alone_load": max(each.load for each in alone),
    }
    for kind, streams in others.items():
        figures |= {
            f"{kind}_p50_ms": statistics.median(gap for each in streams for gap in each.gaps_ms),
            f"{kind}_p99_ms": statistics.median(each.p99 for each in streams),
            f"{kind}_ratio": statistics.median(ratios[kind]),
            f"{kind}_answered_s": max(each.longest_s for each in answers[kind]),
            f"{kind}_statuses": sorted(set().union(*(each.statuses for each in answers[kind]))),
            f"{kind}_load": max(each.load for each in streams),
        }
    return figures


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--tokens", type=int, default=200, help="of each stream")
    parser.add_argument("--rounds", type=int, default=3, help="of which the median counts")
    parser.add_argument("--kinds", nargs="+", choices=HOSTILE, default=list(HOSTILE))


if __name__ == "__main__":
    run(__doc__, measure, _options)
