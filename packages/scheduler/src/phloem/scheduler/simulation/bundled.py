"""Traces that come with the package: made when asked for, from a name, numbers and a seed.

A name alone gives 100,000 requests (`w3` and `w4`: as many as the load generator sends);
`multi-turn:requests=2000,rate=4` changes what its function below has for a parameter. Equal
specifications give equal traces.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from itertools import count
from random import Random

from phloem.scheduler.simulation.trace import FIRST_GROUP, Run, Trace, TracedRequest

REQUESTS = 100_000


def bundled_names() -> tuple[str, ...]:
    """The names that `bundled_trace` knows."""
    return tuple(_MAKERS)


def bundled_trace(spec: str) -> Trace:
    """The trace of a specification, `NAME` or `NAME:parameter=number,...`.

    Raises:
        ValueError: for a name or a parameter that there is not, listing those that there are.
    """
    name, _, rest = spec.partition(":")
    if name not in _MAKERS:
        raise ValueError(f"there is no trace {name!r}: known are {', '.join(_MAKERS)}")
    parameters = inspect.signature(_MAKERS[name]).parameters
    given = {}
    for part in filter(None, rest.split(",")):
        key, _, value = part.partition("=")
        if key not in parameters:
            raise ValueError(f"trace {name} has no {key!r}: it has {', '.join(parameters)}")
        kind = type(parameters[key].default)
        try:
            given[key] = kind(value)
        except ValueError:
            raise ValueError(f"{key}={value!r} of trace {name} is no {kind.__name__}") from None
        if given[key] < 0 or (given[key] == 0 and key != "seed"):
            raise ValueError(f"{key}={value} of trace {name}: give more than 0")
    return Trace(spec, _MAKERS[name](**given))


def shared_prefix(
    requests: int = REQUESTS,
    rate: float = 8.0,
    seed: int = 0,
    prefixes: int = 64,
    prefix: int = 1024,
    suffix: int = 64,
    output: int = 32,
) -> list[TracedRequest]:
    """Questions about `prefixes` long texts, each text as likely as the others."""
    rng = Random(f"shared-prefix {seed}")
    made = []
    for i, arrival in zip(range(requests), _poisson(rng, rate)):
        shared = (FIRST_GROUP + rng.randrange(prefixes), prefix)
        made.append(TracedRequest(arrival, (shared, (FIRST_GROUP + prefixes + i, suffix)), output))
    return made


def multi_turn(
    requests: int = REQUESTS,
    rate: float = 8.0,
    seed: int = 0,
    turns: int = 6,
    system: int = 400,
    think: float = 10.0,
) -> list[TracedRequest]:
    """Conversations of 1 to 2 x `turns` turns after one system prompt; `rate` counts requests."""
    rng = Random(f"multi-turn {seed}")
    groups = count(FIRST_GROUP + 1)
    sessions = (
        _session(rng, arrival, ((FIRST_GROUP, system),), next(groups), turns, think)
        for arrival in _poisson(rng, rate / (turns + 0.5))
    )
    return _chained(sessions, requests)


def agents(
    requests: int = REQUESTS,
    rate: float = 4.0,
    seed: int = 0,
    kinds: int = 8,
    system: int = 3000,
    steps: int = 10,
    tool: float = 1.5,
) -> list[TracedRequest]:
    """Agents of some kinds, each with its long instructions, that call tools in many steps.

    A step adds what the tool said (100 to 800 tokens) and yields the next call (30 to 150).
    """
    rng = Random(f"agents {seed}")
    groups = count(FIRST_GROUP + kinds)
    sessions = (
        _session(
            *(rng, arrival, ((FIRST_GROUP + rng.randrange(kinds), system),)),
            *(next(groups), steps, tool),
            user=(100, 800),
            answer=(30, 150),
            max_tokens=1024,
            tenant="agents",
        )
        for arrival in _poisson(rng, rate / (steps + 0.5))
    )
    return _chained(sessions, requests)


def documents(
    requests: int = REQUESTS, rate: float = 0.5, seed: int = 0, longest: int = 12_000
) -> list[TracedRequest]:
    """Long prompts that share nothing, with short answers."""
    rng = Random(f"documents {seed}")
    made = []
    for i, arrival in zip(range(requests), _poisson(rng, rate)):
        prompt = ((FIRST_GROUP + i, rng.randint(longest // 4, longest)),)
        made.append(TracedRequest(arrival, prompt, rng.randint(50, 250), 512, tenant="documents"))
    return made


def mixed(requests: int = REQUESTS, rate: float = 8.0, seed: int = 0) -> list[TracedRequest]:
    """Of each ten requests about four of chats, three of agents, two on shared texts and one long
    document, with tenants of these names.
    """
    parts: list[tuple[float, Callable[..., list[TracedRequest]], str]] = [
        (0.4, multi_turn, "chat"),
        (0.3, agents, "agents"),
        (0.2, shared_prefix, "texts"),
        (0.1, documents, "documents"),
    ]
    made: list[TracedRequest] = []
    first = 0
    for share, make, tenant in parts:
        part = make(requests=max(round(requests * share), 1), rate=rate * share, seed=seed)
        offset = len(made)
        made += (_moved(request, offset, first, tenant) for request in part)
        first += max(g for r in part for g, _ in _runs(r)) - FIRST_GROUP + 1
    return made[:requests]


def w3(seed: int = 0, requests: int = 64, at_once: int = 16) -> list[TracedRequest]:
    """The load generator's w3: one prefix of 1024 tokens, 64 more each, `at_once` at once."""
    prompts = [((FIRST_GROUP + seed, 1024), (FIRST_GROUP + 2**20 + i, 64)) for i in range(requests)]
    # Outputs are equally long, so the places come free in the order in which they were taken.
    return [
        TracedRequest(0.0, prompt, 32, after=i - at_once if i >= at_once else None)
        for i, prompt in enumerate(prompts)
    ]


def w4(seed: int = 0, conversations: int = 8, turns: int = 4) -> list[TracedRequest]:
    """The load generator's w4: conversations of turns of 64 tokens, answered with 32 each."""
    made: list[TracedRequest] = []
    for conversation in range(conversations):
        group = FIRST_GROUP + seed * conversations + conversation
        for turn in range(turns):
            after = len(made) - 1 if turn else None
            made.append(TracedRequest(0.0, ((group, 64 + turn * 96),), 32, after=after))
    return made


_MAKERS: dict[str, Callable[..., list[TracedRequest]]] = {
    "shared-prefix": shared_prefix,
    "multi-turn": multi_turn,
    "agents": agents,
    "documents": documents,
    "mixed": mixed,
    "w3": w3,
    "w4": w4,
}


def _poisson(rng: Random, rate: float) -> Iterator[float]:
    """Arrival times, `rate` a second on average."""
    now = 0.0
    while True:
        now += rng.expovariate(rate)
        yield now


def _session(
    rng: Random,
    arrival: float,
    before: tuple[Run, ...],
    group: int,
    turns: int,
    pause: float,
    *,
    user: tuple[int, int] = (20, 200),
    answer: tuple[int, int] = (50, 300),
    max_tokens: int = 512,
    tenant: str = "",
) -> list[TracedRequest]:
    """Requests that follow each other; `after` is relative to the session's first."""
    made: list[TracedRequest] = []
    length = 0
    for turn in range(rng.randint(1, 2 * turns)):
        length += rng.randint(*user)
        output = rng.randint(*answer)
        made.append(
            TracedRequest(
                arrival=arrival if turn == 0 else 0.0,
                prompt=(*before, (group, length)),
                output=output,
                max_tokens=max_tokens,
                after=turn - 1 if turn else None,
                delay=rng.expovariate(1 / pause) if turn else 0.0,
                tenant=tenant,
            )
        )
        length += output
    return made


def _chained(sessions: Iterator[list[TracedRequest]], requests: int) -> list[TracedRequest]:
    """The first `requests` requests of sessions, one session after the other."""
    made: list[TracedRequest] = []
    while len(made) < requests:
        offset = len(made)
        made += (_moved(request, offset, 0) for request in next(sessions))
    return made[:requests]


def _moved(
    request: TracedRequest, offset: int, groups: int, tenant: str | None = None
) -> TracedRequest:
    """The request behind `offset` others, its groups renumbered."""
    return TracedRequest(
        arrival=request.arrival,
        prompt=tuple((group + groups, tokens) for group, tokens in _runs(request)),
        output=request.output,
        max_tokens=request.max_tokens,
        after=None if request.after is None else request.after + offset,
        delay=request.delay,
        tenant=request.tenant if tenant is None else tenant,
    )


def _runs(request: TracedRequest) -> tuple[Run, ...]:
    assert isinstance(request.prompt, tuple), "what is made here has groups for prompts"
    return request.prompt
