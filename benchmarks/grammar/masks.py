"""Mask and compile times of the `fsm` backend, xgrammar and llguidance, in one process.

Each constraint of `benchmarks/data/grammars.json` comes with texts that satisfy it; all engines
follow their tokens, as if a model had written them, and fill a mask before each. xgrammar and
llguidance are used raw, with their own tokenizers and their defaults (xgrammar allows properties
that are not declared, as fsm does), and without any of the checks that our wrappers put before
them.

What a user sees is `request`: the masks of `--requests` answers to one constraint, the first right
after compiling it, the texts in turn and a new matcher for each. `served` is compiling and all of
these masks together, `first text` compiling and those of the first answer, wherever an engine puts
the work. Some engines build masks when they are asked for them: `cold` are the masks of the first
answer with each text, `warm` those of texts that were all followed before.

Times are microseconds per mask and per accepted token, milliseconds per compilation. The engines
take turns, so that a machine that slows down does so for all. `vs_best` is ours over the better of
the other two: below 1 is faster. Run it on a machine that does nothing else. As in the server's
scheduler, what is there before the first constraint is out of the garbage collector's sight; and a
backend serves all constraints, so that what fsm found out of the vocabulary for one, or in its
`warm_up`, is there for the next.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Protocol

import llguidance
import llguidance.hf
import llguidance.numpy
import numpy as np
import xgrammar
from transformers import AutoTokenizer

from benchmarks.grammar.mask_times import HEAD, Times, figures_of, lines
from benchmarks.report import Figures, run
from phloem.grammar import Constraint, Vocabulary
from phloem.grammar.fsm_backend import FsmBackend
from phloem.grammar.warm_up import warm_up
from phloem.model_runner.sources import resolve_model

CASES = Path(__file__).parents[1] / "data" / "grammars.json"


@dataclass(frozen=True)
class Case:
    """A constraint, and the tokens of texts that satisfy it."""

    name: str
    kind: str
    source: Any
    texts: list[list[int]]


class Follower(Protocol):
    """Follows one text in one engine."""

    def mask(self) -> None:
        """Fill the mask of the next token."""
        ...

    def accept(self, token: int) -> bool:
        """Take a token."""
        ...


class Engine(Protocol):
    """One of those that are compared."""

    def compile(self, case: Case) -> Callable[[], Follower]:
        """Compile a constraint without any cache; gives what makes followers."""
        ...


class Ours:
    """The `fsm` backend."""

    def __init__(self, tokenizer: Any) -> None:
        self._vocabulary = Vocabulary.from_transformers(tokenizer)
        self._backend = FsmBackend(self._vocabulary)
        warm_up(self._backend, self._vocabulary)
        self._mask = np.zeros((1, self._vocabulary.words), np.int32)

    def compile(self, case: Case) -> Callable[[], Follower]:
        """With the defaults: bounded whitespace, properties in order."""
        constraint = (
            Constraint.regex(case.source)
            if case.kind == "regex"
            else Constraint.json_schema(case.source)
        )
        grammar = self._backend.compile(constraint)
        return lambda: _OurFollower(grammar.matcher(), self._mask)


class _OurFollower:
    def __init__(self, matcher: Any, mask: Any) -> None:
        self._matcher = matcher
        self._mask = mask
        self.accept = matcher.accept

    def mask(self) -> None:
        self._matcher.fill_mask(self._mask, 0)


class XGrammar:
    """Raw xgrammar on one thread."""

    def __init__(self, tokenizer: Any) -> None:
        info = xgrammar.TokenizerInfo.from_huggingface(tokenizer)
        self._compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
        self._mask = xgrammar.allocate_token_bitmask(1, info.vocab_size)

    def compile(self, case: Case) -> Callable[[], Follower]:
        """With its defaults, but for properties that are not declared."""
        if case.kind == "regex":
            compiled = self._compiler.compile_regex(case.source)
        else:
            compiled = self._compiler.compile_json_schema(
                json.dumps(case.source), strict_mode=False
            )
        return lambda: _XFollower(xgrammar.GrammarMatcher(compiled), self._mask)


class _XFollower:
    def __init__(self, matcher: Any, mask: Any) -> None:
        self._matcher = matcher
        self._mask = mask
        self.accept = matcher.accept_token

    def mask(self) -> None:
        self._matcher.fill_next_token_bitmask(self._mask)


class LLGuidance:
    """Raw llguidance."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = llguidance.hf.from_tokenizer(tokenizer)
        self._mask = llguidance.numpy.allocate_token_bitmask(1, self._tokenizer.vocab_size)

    def compile(self, case: Case) -> Callable[[], Follower]:
        """With its defaults."""
        if case.kind == "regex":
            grammar = llguidance.LLMatcher.grammar_from_regex(case.source)
        else:
            grammar = llguidance.LLMatcher.grammar_from_json_schema(case.source)
        matcher = llguidance.LLMatcher(self._tokenizer, grammar)
        if matcher.is_error():
            raise RuntimeError(f"llguidance refuses {case.name}: {matcher.get_error()[:200]}")
        return lambda: _LLFollower(matcher.deep_copy(), self._mask)


class _LLFollower:
    def __init__(self, matcher: Any, mask: Any) -> None:
        self._matcher = matcher
        self._mask = mask

    def accept(self, token: int) -> bool:
        return bool(self._matcher.consume_token(token))

    def mask(self) -> None:
        llguidance.numpy.fill_next_token_bitmask(self._matcher, self._mask)


ENGINES: dict[str, Callable[[Any], Engine]] = {
    "fsm": Ours,
    "xgrammar": XGrammar,
    "llguidance": LLGuidance,
}


def measure(options: argparse.Namespace, say: Callable[[str], None]) -> Figures:
    """All figures: per case, per kind and together."""
    tokenizer = AutoTokenizer.from_pretrained(resolve_model("smollm2").path)
    engines = {name: make(tokenizer) for name, make in ENGINES.items()}
    gc.collect()
    gc.freeze()
    cases = read_cases(lambda text: tokenizer.encode(text, add_special_tokens=False))
    figures: Figures = {}
    groups: dict[str, list[dict[str, Times]]] = {}
    say(HEAD)
    for case in cases:
        if options.only and case.name not in options.only:
            continue
        times = measure_case(case, engines, options.rounds, options.passes, options.requests)
        for group in (case.kind, "all"):
            groups.setdefault(group, []).append(times)
        figures |= figures_of(case.name, times)
        say(lines(case.name, times))
    for group, parts in groups.items():
        times = {name: Times.of_all([one[name] for one in parts]) for name in engines}
        figures |= figures_of(group, times)
        say(lines(group, times))
    return figures


def read_cases(encode: Callable[[str], list[int]]) -> list[Case]:
    """The constraints and texts of the data file."""
    given = json.loads(CASES.read_text(encoding="utf-8"))
    return [
        Case(one["name"], one["kind"], one["source"], [encode(text) for text in one["texts"]])
        for one in given
    ]


def measure_case(
    case: Case, engines: dict[str, Engine], rounds: int, passes: int, requests: int
) -> dict[str, Times]:
    """Compile `rounds` times; after each, answer requests, then follow the texts `passes` times."""
    repeated: dict[str, dict[str, list[list[float]]]] = {
        engine: {one.name: [] for one in fields(Times)} for engine in engines
    }
    count = max(requests, len(case.texts))  # all texts are among the requests
    answers = [case.texts[number % len(case.texts)] for number in range(count)]
    new = sum(map(len, case.texts))
    for _ in range(rounds):
        for name, engine in engines.items():
            found = repeated[name]
            begin = time.perf_counter()
            make = engine.compile(case)
            compiling = (time.perf_counter() - begin) * 1e3
            masks, _ = _follow(case.name, answers, make)
            found["compile_ms"].append([compiling])
            found["first_text_ms"].append([compiling + sum(masks[: len(answers[0])]) / 1e3])
            found["served_ms"].append([compiling + sum(masks) / 1e3])
            found["request_us"].append(masks)
            found["cold_us"].append(masks[:new])
            for _ in range(passes):
                masks, accepts = _follow(case.name, case.texts, make)
                found["warm_us"].append(masks)
                found["accept_us"].append(accepts)
    return {name: Times.of(measured) for name, measured in repeated.items()}


def _follow(
    name: str, texts: Sequence[list[int]], make: Callable[[], Follower]
) -> tuple[list[float], list[float]]:
    """Microseconds of every mask, and of every accepted token."""
    clock = time.perf_counter
    masks: list[float] = []
    accepts: list[float] = []
    for tokens in texts:
        follower = make()
        for token in tokens:
            begin = clock()
            follower.mask()
            filled = clock()
            accepted = follower.accept(token)
            end = clock()
            if not accepted:
                raise RuntimeError(f"{type(follower).__name__} refuses token {token} of {name}")
            masks.append((filled - begin) * 1e6)
            accepts.append((end - filled) * 1e6)
    return masks, accepts


def add_options(parser: argparse.ArgumentParser) -> None:
    """How much to measure."""
    parser.add_argument("--rounds", type=int, default=3, help="compilations of each constraint")
    parser.add_argument("--requests", type=int, default=16, help="answered after each of them")
    parser.add_argument("--passes", type=int, default=5, help="warm passes after these")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="measure these constraints alone")


if __name__ == "__main__":
    run(__doc__, measure, add_options)
