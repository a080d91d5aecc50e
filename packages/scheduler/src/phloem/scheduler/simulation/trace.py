"""Request traces: who asks for what and when, as JSON lines and as objects.

A prompt is written as token ids, or as runs of groups, `[{"group": "system", "tokens": 900},
{"group": "chat 7", "tokens": 80}]`: two prompts share a prefix as far as their runs name the same
groups, which is all that a scheduler without a model needs to know. The output continues the last
group, so a conversation is one group of which every turn names more.

Owns the format and its checks, and the token ids that stand for a prompt. What the bundled traces
contain is `phloem.scheduler.simulation.bundled`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any

import numpy as np
import numpy.typing as npt

_FIRST_OUTPUT = 1 << 24
"""Stands for the outputs of prompts that are given as ids, with the request's index added; above
the token ids of any vocabulary.
"""
FIRST_GROUP = 1 << 25
"""Groups are numbered from here."""
VOCAB_SIZE = 2**31 - 1
END_OF_TEXT = VOCAB_SIZE - 1
"""Ends an output that is shorter than what was asked for."""

Run = tuple[int, int]
"""A group's number and how many of its tokens, from its first on."""


@dataclass(frozen=True, slots=True)
class TracedRequest:
    """One request of a trace. Its output continues the prompt's last group.

    It arrives at `arrival` seconds; with `after`, not before `delay` seconds after that earlier
    request of the trace has ended.
    """

    arrival: float
    prompt: tuple[Run, ...] | npt.NDArray[np.int32]
    output: int
    """Tokens that it produces."""
    max_tokens: int | None = None
    """Tokens that its client allowed for; None: just those it produces."""
    after: int | None = None
    """Index of an earlier request."""
    delay: float = 0.0
    priority: int = 0
    tenant: str = ""

    @property
    def num_prompt(self) -> int:
        """Prompt tokens."""
        if isinstance(self.prompt, tuple):
            return sum(tokens for _, tokens in self.prompt)
        return len(self.prompt)

    @property
    def allowed(self) -> int:
        """What it counts for at admission."""
        return self.output if self.max_tokens is None else self.max_tokens


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests, in the order in which they may be referred to."""

    name: str
    requests: Sequence[TracedRequest]

    def __len__(self) -> int:
        return len(self.requests)

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt with all the output that it was allowed."""
        return max((r.num_prompt + r.allowed for r in self.requests), default=0)


def prompt_ids(request: TracedRequest) -> npt.NDArray[np.int32]:
    """int32 [num_prompt]: the token ids, made when they are needed.

    Every token of a group has the group's number for its id: equal where the groups are, different
    where they differ, and there is nothing to draw or to keep.
    """
    if not isinstance(request.prompt, tuple):
        return request.prompt
    runs = np.array(request.prompt, np.int32)
    return np.repeat(runs[:, 0], runs[:, 1])


def output_token(request: TracedRequest, index: int) -> int:
    """The id of every token that a request produces; of the request at `index` of its trace."""
    if isinstance(request.prompt, tuple):
        return request.prompt[-1][0]
    return _FIRST_OUTPUT + index


def read_trace(lines: Iterable[str], name: str) -> Trace:
    """A trace of JSON lines; blank ones are skipped.

    A line has `prompt` (token ids or runs), `output` (tokens), and may have `arrival` (seconds, 0),
    `max_tokens`, `id`, `after` (the id of an earlier line), `delay` (seconds after its end),
    `priority` and `tenant`.

    Raises:
        ValueError: naming the line and what is wrong with it.
    """
    reader = _Reader()
    requests: list[TracedRequest] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            requests.append(reader.read(line, len(requests)))
        except ValueError as error:
            raise ValueError(f"{name}, line {number}: {error}") from error
    if not requests:
        raise ValueError(f"{name} has no requests: give one JSON object on each line")
    return Trace(name, requests)


def write_trace(trace: Trace, file: IO[str]) -> None:
    """Write a trace as `read_trace` reads it."""
    followed = {r.after for r in trace.requests if r.after is not None}
    for index, request in enumerate(trace.requests):
        file.write(json.dumps(dict(_fields(request, index, index in followed))) + "\n")


_OPTIONAL: Mapping[str, Any] = {"max_tokens": None, "delay": 0.0, "priority": 0, "tenant": ""}


def _fields(request: TracedRequest, index: int, followed: bool) -> Iterator[tuple[str, Any]]:
    if followed:
        yield "id", str(index)
    yield "arrival", request.arrival
    if isinstance(request.prompt, tuple):
        yield "prompt", [{"group": str(g), "tokens": n} for g, n in request.prompt]
    else:
        yield "prompt", request.prompt.tolist()
    yield "output", request.output
    if request.after is not None:
        yield "after", str(request.after)
    for name, default in _OPTIONAL.items():
        value = getattr(request, name)
        if value != default:
            yield name, value


class _Reader:
    """Reads lines; knows the groups and the ids that came before."""

    def __init__(self) -> None:
        self._groups: dict[str, int] = {}
        self._ids: dict[str, int] = {}

    def read(self, line: str, index: int) -> TracedRequest:
        given = json.loads(line)
        if not isinstance(given, dict):
            raise ValueError("it is no JSON object")
        known = {"arrival", "prompt", "output", "id", "after", *_OPTIONAL}
        unknown = sorted(set(given) - known)
        if unknown:
            raise ValueError(f"{unknown[0]!r} is unknown: known are {', '.join(sorted(known))}")
        request = TracedRequest(
            arrival=_seconds(given, "arrival"),
            prompt=self._prompt(given.get("prompt")),
            output=_count(given.get("output"), "output"),
            max_tokens=self._max_tokens(given),
            after=self._after(given.get("after")),
            delay=_seconds(given, "delay"),
            priority=_integer(given.get("priority", 0), "priority"),
            tenant=str(given.get("tenant", "")),
        )
        if "id" in given:
            self._ids[str(given["id"])] = index
        return request

    def _prompt(self, prompt: Any) -> tuple[Run, ...] | npt.NDArray[np.int32]:
        if not isinstance(prompt, list) or not prompt:
            raise ValueError("prompt is missing or empty: give token ids, or runs of groups")
        if all(isinstance(run, dict) for run in prompt):
            return tuple(map(self._run, prompt))
        ids = np.array([_integer(token, "a token id") for token in prompt], np.int64)
        if ids.min() < 0 or ids.max() >= _FIRST_OUTPUT:
            raise ValueError(
                f"the prompt has ids from {ids.min()} to {ids.max()}: "
                f"allowed are 0 to {_FIRST_OUTPUT - 1}"
            )
        return ids.astype(np.int32)

    def _run(self, run: Mapping[str, Any]) -> Run:
        if set(run) != {"group", "tokens"}:
            raise ValueError(f'{run!r} is no run: write {{"group": "a name", "tokens": 100}}')
        number = self._groups.setdefault(str(run["group"]), FIRST_GROUP + len(self._groups))
        return number, _count(run["tokens"], "tokens")

    def _after(self, name: Any) -> int | None:
        if name is None:
            return None
        if str(name) not in self._ids:
            raise ValueError(f"after {name!r} is the id of no earlier line")
        return self._ids[str(name)]

    def _max_tokens(self, given: Mapping[str, Any]) -> int | None:
        if given.get("max_tokens") is None:
            return None
        wanted = _count(given["max_tokens"], "max_tokens")
        if wanted < given["output"]:
            raise ValueError(f"output {given['output']} is more than max_tokens {wanted}")
        return wanted


def _integer(value: Any, what: str) -> int:
    if type(value) is not int:
        raise ValueError(f"{what} is {value!r}: give an integer")
    return value


def _count(value: Any, name: str) -> int:
    number = _integer(value, name)
    if not 1 <= number < _FIRST_OUTPUT:
        raise ValueError(f"{name} is {number}: give 1 or more, below {_FIRST_OUTPUT}")
    return number


def _seconds(given: Mapping[str, Any], name: str) -> float:
    value = given.get(name, 0.0)
    if type(value) not in (int, float) or not 0 <= value < math.inf:
        raise ValueError(f"{name} is {value!r}: give seconds, 0 or more")
    return float(value)
