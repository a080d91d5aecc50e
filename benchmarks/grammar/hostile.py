"""The pace of a stream beside hostile constraints and bodies, over HTTP.

One client streams a completion, alone and then while another posts constraints that cannot be
served, one after the other, a pause after each is refused; the same with bodies of megabytes that
are no constraints; and while one posts grammars in EBNF, for the first of which the server has to
load a library (these are served, in steps of the model that they share with the stream). Figures
are milliseconds between the pieces of the stream; `ratio` is the median of the p99 beside a kind of
post over that of the stream right before it, `answered_s` the longest that one of them took, and
`load` the machine's load when each began. Rounds alone and beside each kind take turns. Run it on a
machine that does nothing else.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import time
import uuid
from collections.abc import Callable
from itertools import pairwise
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from typing import Any, NamedTuple

import httpx
import numpy as np

from benchmarks.report import Figures, run
from phloem.server.background import running_server
from phloem.server.config import ServerArgs

COMPLETIONS, CHAT, GENERATE = "/v1/completions", "/v1/chat/completions", "/generate"
PATIENCE = 300.0
_PAUSE = 0.1
"""Seconds: what is refused at once is not to become a flood of requests."""
_CLIENT_NICE = 10
"""Priority of who posts."""


def nested_alternatives(depth: int) -> dict[str, Any]:
    """A schema of `oneOf` within `oneOf`, whose alternatives overlap."""
    levels: dict[str, Any] = {"at0": {"type": "object", "properties": {"x": {"type": "integer"}}}}
    for level in range(depth):
        inner = {"$ref": f"#/$defs/at{level}"}
        within = {"type": "object", "properties": {f"p{level}": inner}}
        required = {**within, "required": [f"p{level}"]}
        levels[f"at{level + 1}"] = {"oneOf": [within, required, {"not": inner}]}
    return {"$defs": levels, "$ref": f"#/$defs/at{depth}"}


class Post(NamedTuple):
    """What is posted; each time with another text in place of `NEW`, so that nothing is known."""

    fields: dict[str, Any]
    path: str = COMPLETIONS

    def body(self) -> bytes:
        """To be made new, which takes no time while a stream is measured."""
        common = {"prompt": "x", "max_tokens": 8} if self.path == COMPLETIONS else {}
        return json.dumps(common | self.fields).encode()


NEW = "0" * 32
_WORDS = "The quick brown fox jumps over the lazy dog. " * 45_000
_MANY = {"choices": [NEW, *(f"{NEW[1:]} {n} {n * n}" for n in range(60_000))]}
HOSTILE: dict[str, Post] = {
    "repetition": Post({"regex": f"{NEW}(a{{1,1000}}){{1,1000}}"}),
    "ambiguous": Post({"regex": f"{NEW}(x+x+)+y.{{400}}[a-z]{{0,400}}z(.*a.{{200}})"}),
    # Refused for its path, and not read: what it takes to send as much as the next one.
    "unread": Post(_MANY, "/health"),
    "enum": Post(_MANY),
    "schema_enum": Post({"json_schema": {"enum": [NEW, *map(str, range(10**6, 10**6 + 200_000))]}}),
    "depth": Post({"json_schema": '{"items":' * 5000 + f'{{"title":"{NEW}"}}' + "}" * 5000}),
    "alternatives": Post({"json_schema": {"title": NEW, **nested_alternatives(12)}}),
    "ebnf": Post({"ebnf": f'root ::= "{NEW}" [0-9]+'}),
    "chat": Post({"messages": [{"role": "user", "content": NEW + _WORDS}]}, CHAT),
    "ids": Post({"rid": NEW, "input_ids": list(range(10_000, 30_000)) * 10}, GENERATE),
    "empty_lists": Post({"cache_salt": NEW, "prompt": [[]] * 1_000_000}),
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
    """What posts came to while a stream went on."""

    statuses: set[int]
    longest_s: float
    times: int


def stream(url: str, tokens: int) -> Stream:
    """Stream a completion."""
    body = {"prompt": "Once upon a time", "max_tokens": tokens, "temperature": 0}
    body |= {"ignore_eos": True, "stream": True}
    load = os.getloadavg()[0]
    with httpx.stream("POST", url + COMPLETIONS, json=body, timeout=PATIENCE) as response:
        response.raise_for_status()
        pieces = (line for line in response.iter_lines() if line.startswith("data: {"))
        times = [time.perf_counter() for _ in pieces]
    return Stream([(after - before) * 1e3 for before, after in pairwise(times)], load)


def beside(url: str, tokens: int, post: Post) -> tuple[Stream, Answers]:
    """Stream a completion while something is posted."""
    spawned = multiprocessing.get_context("spawn")
    over, begun = spawned.Event(), spawned.Event()
    results, sink = spawned.Pipe(duplex=False)
    poster = spawned.Process(target=_keep_posting, args=(url, post, begun, over, sink))
    poster.start()
    begun.wait()
    try:
        seen = stream(url, tokens)
    finally:
        over.set()
    answers: Answers = results.recv()
    poster.join()
    return seen, answers


def _keep_posting(url: str, post: Post, begun: Event, over: Event, sink: Connection) -> None:
    """In a process of its own: one that reads a stream has other threads wait, and that process
    would be on another machine.
    """
    os.nice(_CLIENT_NICE)
    body, statuses, seconds = post.body(), set(), []
    headers = {"Content-Type": "application/json"}
    with httpx.Client(base_url=url, timeout=PATIENCE, headers=headers) as client:
        while not over.is_set():
            content = body.replace(NEW.encode(), uuid.uuid4().hex.encode(), 1)
            begun.set()
            begin = time.perf_counter()
            statuses.add(client.post(post.path, content=content).status_code)
            seconds.append(time.perf_counter() - begin)
            over.wait(_PAUSE)
    sink.send(Answers(statuses, max(seconds), len(seconds)))


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
